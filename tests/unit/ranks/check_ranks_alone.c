/* check_ranks_alone.c - a process of its own: the whole interface of ranks, without MPI. */
#include "tests/support/fixtures.h"

#include "base/text.h"
#include "ranks/ranks.h"
#include "ranks/ranks_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void plain_start(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS",
                                        "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
}

START_TEST(a_plain_start_has_no_handle)
{
    exf_ranks *r = (exf_ranks *)&r;
    exf_err err;
    int speaks = 0;
    ck_assert_int_eq(exf_ranks_started(), 0);
    ck_ok(exf_ranks_open(&r, &err), err);
    ck_assert_ptr_null(r);
    exf_place p = exf_ranks_place(NULL);
    ck_assert(p.rank == 0 && p.size == 1 && p.local_rank == 0 && p.local_size == 1 && p.node == 0 && p.n_nodes == 1 && p.host[0]);
    ck_assert(exf_ranks_first(NULL));
    ck_assert_int_eq(exf_ranks_close(NULL, EXF_MODEL, &speaks, &err), EXF_MODEL);
    ck_assert_int_eq(speaks, 1);
    exf_ranks_abort(EXF_MODEL); /* ends nothing */
}
END_TEST

START_TEST(the_environment_says_how_many)
{
    setenv("SLURM_NTASKS", "8", 1); /* a batch script is one process */
    ck_assert_int_eq(exf_ranks_started(), 0);
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    ck_assert_int_eq(exf_ranks_started(), 4);
    setenv("PMI_SIZE", "3x", 1);
    ck_assert_int_eq(exf_ranks_started(), 4);
    setenv("PMI_SIZE", "3", 1);
    ck_assert_int_eq(exf_ranks_started(), 3);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    ck_assert_int_eq(exf_ranks_started(), 2);
    if (!exf_ranks_built()) {
        exf_ranks *r;
        exf_err err;
        ck_fails(exf_ranks_open(&r, &err), EXF_USAGE, err, "2 MPI");
    }
    plain_start();
}
END_TEST

START_TEST(sums_and_votes_are_ones_own)
{
    uint64_t x[2] = {3, UINT64_MAX};
    exf_ranks_array a = {x, 2, EXF_RANKS_U64};
    exf_err err = {.code = EXF_OK, .msg = "kept"};
    int largest = 0;
    ck_ok(exf_ranks_sum(NULL, &a, 1, &err), err);
    ck_ok(exf_ranks_sum_beside(NULL, &a, 1, &err), err);
    exf_ranks_waited(NULL, 1);
    ck_assert(x[0] == 3 && x[1] == UINT64_MAX);
    ck_ok(exf_ranks_vote_start(NULL, 7, &err), err);
    ck_ok(exf_ranks_vote_finish(NULL, &largest, &err), err);
    ck_assert_int_eq(largest, 7);
    ck_ok(exf_ranks_broadcast(NULL, x, sizeof x, &err), err);
    ck_ok(exf_ranks_barrier(NULL, &err), err);
    ck_ok(exf_ranks_node_barrier(NULL, &err), err);
    ck_ok(exf_ranks_check(NULL, &err), err);
    ck_ok(exf_ranks_same(NULL, "a", &err), err);
    ck_assert_int_eq(exf_ranks_agree(NULL, EXF_IO, &err), EXF_IO);
    ck_assert_int_eq(exf_ranks_fail(NULL, EXF_IO, &err), EXF_IO);
    ck_assert_str_eq(err.msg, "kept");
}
END_TEST

START_TEST(bytes_are_gathered)
{
    exf_ranks_gathered g;
    exf_err err;
    ck_ok(exf_ranks_gather(NULL, "abc", 4, &g, &err), err);
    ck_assert_int_eq(g.size, 1);
    ck_assert(g.offset[0] == 0 && g.offset[1] == 4);
    ck_assert_str_eq(g.data, "abc");
    exf_ranks_gathered_free(&g);
    ck_ok(exf_ranks_gather(NULL, NULL, 0, &g, &err), err);
    ck_assert_uint_eq(g.offset[1], 0);
    exf_ranks_gathered_free(&g);
    char all[8] = "-------", own[] = "abc";
    ck_ok(exf_ranks_gather_parts(NULL, own, 3, 2, all, &err), err);
    ck_assert_str_eq(all, "--abc--");
    ck_ok(exf_ranks_gather_parts(NULL, all + 2, 3, 2, all, &err), err);
    ck_assert_str_eq(all, "--abc--");
}
END_TEST

START_TEST(a_window_is_zeroed_memory)
{
    exf_ranks_window w;
    exf_err err;
    ck_ok(exf_ranks_window_new(&w, NULL, 100001, &err), err);
    ck_assert_uint_eq(w.bytes, 100001);
    ck_assert_uint_eq((uintptr_t)w.at % 4096, 0);
    for (size_t i = 0; i < w.bytes; i++) ck_assert_int_eq(((char *)w.at)[i], 0);
    memset(w.at, 1, w.bytes);
    exf_ranks_window_free(&w, NULL);
    ck_assert_ptr_null(w.at);
    exf_ranks_window_free(&w, NULL);
}
END_TEST

START_TEST(nobody_stands_out_alone)
{
    char text[EXF_STRAGGLER_TEXT] = "x";
    exf_ranks_layer(NULL, 3, 1e9);
    exf_ranks_straggler(NULL, text);
    ck_assert_str_eq(text, "");
}
END_TEST

/* Finds what each of two texts has where they begin to differ. */
static void differ(const char *a, const char *b, const char *want_a, const char *want_b)
{
    char line_a[EXF_ONE_EXCERPT], line_b[EXF_ONE_EXCERPT];
    exf_one_difference(a, b, line_a, line_b);
    ck_assert_str_eq(line_a, want_a);
    ck_assert_str_eq(line_b, want_b);
    exf_one_difference(b, a, line_b, line_a);
    ck_assert_str_eq(line_a, want_a);
    ck_assert_str_eq(line_b, want_b);
}

START_TEST(what_differs_is_shown)
{
    char a[4000] = "one\n", b[4000] = "one\n", line_a[EXF_ONE_EXCERPT], line_b[EXF_ONE_EXCERPT];
    differ("one\ntwo x\nthree", "one\ntwo y\nthree", "two x", "two y");
    differ("one\ntwo", "one\ntwo\nthree", "", "three");
    differ("one\ntwo", "one\ntwo\n", "", ""); /* nothing but the line's end */
    differ("", "x", "", "x");
    /* a long line of words: from the word that differs */
    for (int i = 0; i < 100; i++) sprintf(a + strlen(a), "word%d ", i), sprintf(b + strlen(b), "word%d ", i);
    strcat(a, "pear tree");
    strcat(b, "peach tree");
    differ(a, b, "... pear tree", "... peach tree");
    /* a long word: from a little before its first byte that differs, and never from the middle of a letter */
    for (int i = 4; i < 3800; i += 2) memcpy(a + i, "\xc3\xa9", 3), memcpy(b + i, "\xc3\xa9", 3);
    strcat(a, "\xc3\xa4 is a");
    strcat(b, "\xc3\xb6 is b");
    exf_one_difference(a, b, line_a, line_b);
    ck_assert(strncmp(line_a, "...\xc3\xa9", 5) == 0 && strstr(line_a, "\xc3\xa9\xc3\xa4 is a"));
    ck_assert(strncmp(line_b, "...\xc3\xa9", 5) == 0 && strstr(line_b, "\xc3\xa9\xc3\xb6 is b"));
    /* and it ends at a letter's end */
    for (int shift = 0; shift < 2; shift++) {
        a[0] = 0;
        for (int i = 0; i < shift; i++) strcat(a, "x");
        for (int i = 0; i < 500; i++) strcat(a, "\xc3\xa9");
        exf_one_difference(a, "-", line_a, line_b);
        ck_assert_uint_eq(exf_utf8_valid(line_a, strlen(line_a)), strlen(line_a));
        ck_assert(strlen(line_a) > 250);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, plain_start, NULL);
    tcase_add_test(t, a_plain_start_has_no_handle);
    tcase_add_test(t, the_environment_says_how_many);
    tcase_add_test(t, sums_and_votes_are_ones_own);
    tcase_add_test(t, bytes_are_gathered);
    tcase_add_test(t, a_window_is_zeroed_memory);
    tcase_add_test(t, nobody_stands_out_alone);
    tcase_add_test(t, what_differs_is_shown);
}
