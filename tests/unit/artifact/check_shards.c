/* check_shards.c - which shards files hold, and whether all are there. */
#include "tests/support/scratch_fixtures.h"

#include "artifact/data.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

#define CORPUS "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define OTHER "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

enum { MOST = 4 };

static exf_err e; /* of the last call */

/* Parts made by hand: a text "" is a part of data that is no shard, NULL ends the list. */
typedef struct {
    exf_provenance facts[MOST], origin[MOST];
    exf_facts_part part[MOST];
    size_t n;
} files;

static void add_shard(exf_provenance *origin, int i, const char *shard)
{
    char key[64];
    snprintf(key, sizeof key, "part.%d.tokens_digest", i);
    ck_ok(exf_provenance_add(origin, &e, key, "%d", i), e);
    snprintf(key, sizeof key, "part.%d.shard", i);
    if (*shard) ck_ok(exf_provenance_add(origin, &e, key, "%s", shard), e);
}

/* A capture of a shard, and statistics of one or two. */
static void add_capture(files *f, const char *shard)
{
    size_t i = f->n++;
    if (*shard) ck_ok(exf_provenance_add(&f->facts[i], &e, "data.shard", "%s", shard), e);
    f->part[i] = (exf_facts_part){.path = "capture.h5", .provenance = &f->facts[i]};
}

static void add_statistics(files *f, const char *path, const char *first, const char *second)
{
    size_t i = f->n++;
    add_shard(&f->origin[i], 0, first);
    if (second) add_shard(&f->origin[i], 1, second);
    f->part[i] = (exf_facts_part){.path = path, .provenance = &f->facts[i], .origin = &f->origin[i]};
}

static void clear(files *f)
{
    for (size_t i = 0; i < f->n; i++) exf_provenance_free(&f->facts[i]), exf_provenance_free(&f->origin[i]);
    memset(f, 0, sizeof *f);
}

START_TEST(all_shards_once_are_taken)
{
    files f = {.n = 0};
    add_statistics(&f, "a", "2/3 of " CORPUS, "1/3 of " CORPUS);
    add_statistics(&f, "b", "", NULL);
    add_capture(&f, "3/3 of " CORPUS);
    add_statistics(&f, "c", "1/1 of " OTHER, NULL);
    ck_ok(exf_shards_check(f.part, f.n, 0, &e), e);
    clear(&f);
    ck_ok(exf_shards_check(f.part, 0, 0, &e), e);
}
END_TEST

START_TEST(missing_doubled_and_overlapping_shards_are_named)
{
    files f = {.n = 0};
    add_statistics(&f, "a", "2/4 of " CORPUS, "1/1 of " OTHER);
    ck_fails(exf_shards_check(f.part, f.n, 0, &e), EXF_MODEL, e,
             "2/4 3 corpus' 1/4 3/4 4/4");
    ck_ok(exf_shards_check(f.part, f.n, 1, &e), e);
    add_statistics(&f, "b", "3/4 of " CORPUS, "2/4 of " CORPUS);
    ck_fails(exf_shards_check(f.part, f.n, 1, &e), EXF_MODEL, e, "2/4");
    clear(&f);
    add_statistics(&f, "a", "2/4 of " CORPUS, NULL);
    add_capture(&f, "1/2 of " CORPUS);
    ck_fails(exf_shards_check(f.part, f.n, 1, &e), EXF_MODEL, e, "capture.h5 1/2 2/4");
    clear(&f);
    add_statistics(&f, "a", "1/40 of " CORPUS, NULL);
    ck_fails(exf_shards_check(f.part, f.n, 0, &e), EXF_MODEL, e, "39 corpus' 2/40 3/40");
    ck_assert_ptr_nonnull(strstr(e.msg, ", ...; make them"));
    clear(&f);
}
END_TEST

static void says(const files *f, const char *want)
{
    for (size_t i = 0; i < f->n; i++) {
        exf_text words = {0};
        ck_ok(exf_part_words(&words, &f->part[i], &e), e);
        ck_assert_str_eq(words.s ? words.s : "", want);
        exf_text_free(&words);
    }
}

START_TEST(a_part_is_told_from_the_whole)
{
    static const char *const whole[][2] = {{"", NULL}, {"2/2 of " CORPUS, "1/2 of " CORPUS}, {"1/1 of " OTHER, ""}};
    files f = {.n = 0};
    for (size_t i = 0; i < 3; i++) add_statistics(&f, "a", whole[i][0], whole[i][1]);
    add_capture(&f, "");
    says(&f, "");
    clear(&f);
    add_capture(&f, "2/3 of " CORPUS);
    add_statistics(&f, "a", "2/3 of " CORPUS, "");
    add_statistics(&f, "a", "1/1 of " OTHER, "2/3 of " CORPUS);
    says(&f, "shard 2 of 3 of corpus 0011223344556677");
    clear(&f);
    add_statistics(&f, "a", "2/3 of " CORPUS, "1/3 of " CORPUS);
    add_capture(&f, "");
    ck_ok(exf_provenance_add(&f.facts[1], &e, EXF_PART_FACT, "shards 1, 2 of 3 of corpus 0011223344556677"), e); /* tables */
    says(&f, "shards 1, 2 of 3 of corpus 0011223344556677");
    clear(&f);
    add_statistics(&f, "a", "2/3 of " OTHER, "1/4 of " CORPUS);
    says(&f, "shard 1 of 4 of corpus 0011223344556677; shard 2 of 3 of corpus ff11223344556677");
    clear(&f);
}
END_TEST

/* Recorded hidden states have no tokens, and come first among the parts. */
START_TEST(shards_beside_other_data_are_told)
{
    files f = {.n = 0};
    f.n = 1;
    f.part[0] = (exf_facts_part){.path = "a", .provenance = &f.facts[0], .origin = &f.origin[0]};
    ck_ok(exf_provenance_add(&f.origin[0], &e, "part.0.moe_inputs_sha256", "of a file"), e);
    add_shard(&f.origin[0], 1, "2/3 of " CORPUS);
    says(&f, "shard 2 of 3 of corpus 0011223344556677");
    ck_fails(exf_shards_check(f.part, f.n, 0, &e), EXF_MODEL, e, "2/3 2 corpus'");
    clear(&f);
}
END_TEST

START_TEST(many_shards_are_told_in_runs)
{
    files f = {.n = 1};
    char shard[128];
    f.part[0] = (exf_facts_part){.path = "a", .provenance = &f.facts[0], .origin = &f.origin[0]};
    for (int i = 0; i < 200; i++) { /* 1 to 9, 11, 12, then every other one */
        int number = i < 9 ? i + 1 : i < 11 ? i + 2 : 2 * i - 8;
        snprintf(shard, sizeof shard, "%d/400 of " CORPUS, number);
        add_shard(&f.origin[0], i, shard);
    }
    exf_text words = {0};
    ck_ok(exf_part_words(&words, &f.part[0], &e), e);
    ck_assert(strncmp(words.s, "shards 1-9, 11, 12, 14, 16, 18", 30) == 0);
    ck_assert_ptr_nonnull(strstr(words.s, ", 70, ..., 200 in all, of 400 of corpus 0011223344556677"));
    exf_text_free(&words);
    clear(&f);
}
END_TEST

START_TEST(malformed_shards_are_named)
{
    static const char *const bad[] = {"2/1 of " CORPUS, "0/1 of " CORPUS, "1/2 of abc", "1/2", "1/2 of " CORPUS "0"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        files f = {.n = 0};
        add_capture(&f, bad[i]);
        ck_fails(exf_shards_check(f.part, f.n, 0, &e), EXF_FORMAT, e, "capture.h5 \"");
        clear(&f);
    }
}
END_TEST

START_TEST(shards_of_one_corpus_may_share_sequences)
{
    files f = {.n = 0};
    int same;
    add_statistics(&f, "a", "2/4 of " CORPUS, "3/4 of " CORPUS);
    add_capture(&f, "1/4 of " CORPUS);
    add_capture(&f, "1/4 of " OTHER);
    add_statistics(&f, "d", "4/4 of " CORPUS, "");
    ck_ok(exf_shards_of_one_corpus(&f.part[0], &f.part[1], &same, &e), e);
    ck_assert_int_eq(same, 1);
    ck_ok(exf_shards_of_one_corpus(&f.part[0], &f.part[2], &same, &e), e);
    ck_assert_int_eq(same, 0);
    ck_ok(exf_shards_of_one_corpus(&f.part[0], &f.part[3], &same, &e), e);
    ck_assert_int_eq(same, 0);
    clear(&f);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, all_shards_once_are_taken);
    tcase_add_test(t, missing_doubled_and_overlapping_shards_are_named);
    tcase_add_test(t, a_part_is_told_from_the_whole);
    tcase_add_test(t, shards_beside_other_data_are_told);
    tcase_add_test(t, many_shards_are_told_in_runs);
    tcase_add_test(t, malformed_shards_are_named);
    tcase_add_test(t, shards_of_one_corpus_may_share_sequences);
}
