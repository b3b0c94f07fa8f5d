/* check_resume.c - a resume point is read back as it was saved, and only if every file and fact of it is right. */
#include "tests/support/scratch_fixtures.h"

#include "pass/resume.h"

#include <sys/stat.h>
#include <time.h>

enum { CHUNK = EXF_RESUME_CHUNK, N_BYTES = 2 * CHUNK + 12345, N_SUMS = 6 };

static exf_err e; /* of the last call */
static const char *tokens = "1234";
static uint64_t sums[N_SUMS] = {1, 2, 3, 4, 5, UINT64_MAX};
static unsigned char *hidden;

static void start(void)
{
    start_empty();
    tokens = "1234";
    hidden = NULL;
    ck_ok(exf_mem_new(&hidden, N_BYTES, 1, "test", &e), e);
    for (size_t i = 0; i < N_BYTES; i++) hidden[i] = (unsigned char)(i * 2654435761u >> 13);
}

static void end(void)
{
    exf_mem_free(hidden);
}

static exf_code open_point(exf_resume **r, exf_resume_mode mode, exf_err *err)
{
    exf_provenance facts = {0};
    exf_code rc;
    EXF_TRY(exf_provenance_add(&facts, err, "model.weights_sha256", "%s", "abcd"));
    EXF_TRY(exf_provenance_add(&facts, err, "data.tokens_sha256", "%s", tokens));
    exf_resume_options o = {.directory = exf_scratch("point"), .mode = mode, .facts = &facts, .every_layers = 1};
    rc = exf_resume_open(r, &o, err);
out:
    exf_provenance_free(&facts);
    return rc;
}

static exf_tensor sums_tensor(void)
{
    return (exf_tensor){.name = "sums", .dtype = EXF_DT_U64, .rank = 2, .shape = {2, 3}, .data = sums};
}

/* A run that does layers [first, done), and saves after each. */
static exf_code save_layers(exf_resume *r, int first, int done, exf_err *err)
{
    exf_tensor t = sums_tensor();
    exf_code rc = EXF_OK;
    for (int l = first; l < done; l++) {
        exf_resume_progress now = {.layers_done = l + 1, .joined = l == 0,
                                   .weight_bytes = 100u * (unsigned)(l + 1), .flops = 0.5 + l};
        EXF_TRY(exf_resume_put(r, "sums", l, &t, 1, err));
        EXF_TRY(exf_resume_hidden_begin(r, l + 1, N_BYTES, err));
        EXF_TRY(exf_resume_hidden_put(r, 0, hidden, 2 * CHUNK, 2, err));
        EXF_TRY(exf_resume_hidden_put(r, 2 * CHUNK, hidden + 2 * CHUNK, N_BYTES - 2 * CHUNK, 2, err));
        EXF_TRY(exf_resume_save(r, &now, err));
        EXF_TRY(exf_resume_wait(r, err));
    }
out:
    return rc;
}

static void save_two(void)
{
    exf_resume *r;
    ck_ok(open_point(&r, EXF_RESUME_AUTO, &e), e);
    ck_assert_int_eq(exf_resume_start(r)->layers_done, 0);
    ck_ok(save_layers(r, 0, 2, &e), e);
    ck_assert_int_eq(exf_resume_saved_layers(r), 2);
    exf_resume_free(r);
}

/* Reads everything that the point of two layers has. */
static exf_code read_two(exf_resume *r, exf_err *err)
{
    unsigned char *got = NULL;
    uint64_t got_sums[N_SUMS];
    exf_tensor t = sums_tensor();
    exf_file *f = NULL;
    exf_st_file *record = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&got, N_BYTES, 1, "test", err));
    for (int l = 0; l < 2; l++) {
        EXF_TRY(exf_resume_get(r, "sums", l, &record, err));
        EXF_TRY(exf_resume_read(record, &t, got_sums, err));
        exf_st_close(record);
        record = NULL;
        ck_assert_mem_eq(got_sums, sums, sizeof sums);
    }
    EXF_TRY(exf_resume_hidden_open(r, N_BYTES, &f, err));
    EXF_TRY(exf_resume_hidden_get(r, f, 0, got, N_BYTES, 3, err));
    ck_assert_mem_eq(got, hidden, N_BYTES);
out:
    exf_st_close(record);
    exf_file_close(f);
    exf_mem_free(got);
    return rc;
}

START_TEST(a_point_is_read_back_as_it_was_saved)
{
    exf_resume *r;
    save_two();
    ck_ok(open_point(&r, EXF_RESUME_REQUIRE, &e), e);
    const exf_resume_progress *was = exf_resume_start(r);
    ck_assert_int_eq(was->layers_done, 2);
    ck_assert_int_eq(was->joined, 0);
    ck_assert_uint_eq(was->weight_bytes, 200);
    ck_assert(was->flops == 1.5);
    ck_ok(read_two(r, &e), e);
    exf_resume_free(r);
}
END_TEST

START_TEST(a_run_that_went_on_saves_the_next_point)
{
    exf_resume *r;
    save_two();
    ck_ok(open_point(&r, EXF_RESUME_AUTO, &e), e);
    ck_ok(save_layers(r, 2, 3, &e), e);
    exf_resume_free(r);
    ck_ok(open_point(&r, EXF_RESUME_AUTO, &e), e);
    ck_assert_int_eq(exf_resume_start(r)->layers_done, 3);
    ck_ok(read_two(r, &e), e);
    ck_assert(!exf_path_exists(exf_scratch("point/hidden-2")));
    ck_ok(exf_resume_remove(r, &e), e);
    exf_resume_free(r);
    ck_assert_int_eq(files_left(), 0);
}
END_TEST

START_TEST(the_point_of_another_run_is_refused)
{
    exf_resume *r;
    save_two();
    tokens = "5678";
    ck_fails(open_point(&r, EXF_RESUME_AUTO, &e), EXF_MODEL, e, "data.tokens_sha256 1234 5678");
    ck_assert_ptr_null(strstr(e.msg, "weights"));
    ck_assert(strstr(e.msg, "--resume=never") != NULL);
    ck_ok(open_point(&r, EXF_RESUME_NEVER, &e), e);
    ck_assert_int_eq(exf_resume_start(r)->layers_done, 0);
    ck_assert(!exf_path_exists(exf_scratch("point/hidden-2")));
    ck_ok(exf_resume_remove(r, &e), e);
    exf_resume_free(r);
    ck_assert_int_eq(files_left(), 0);
    ck_fails(open_point(&r, EXF_RESUME_REQUIRE, &e), EXF_USAGE, e, "--resume=require");
}
END_TEST

/* Flips a bit of a file of the point. */
static void damage(const char *name, size_t at)
{
    char *bytes = NULL;
    size_t n;
    ck_ok(exf_file_slurp(exf_scratch(name), 1 << 30, &bytes, &n, &e), e);
    bytes[at % n] ^= 4;
    exf_write_file(exf_scratch(name), bytes, n);
    exf_mem_free(bytes);
}

static exf_code open_and_read(exf_err *err)
{
    exf_resume *r = NULL;
    exf_code rc;
    EXF_TRY(open_point(&r, EXF_RESUME_AUTO, err));
    EXF_TRY(read_two(r, err));
out:
    exf_resume_free(r);
    return rc;
}

START_TEST(a_flipped_bit_is_found)
{
    save_two();
    ck_ok(open_and_read(&e), e);
    damage("point/hidden-2", CHUNK + 77);
    ck_fails(open_and_read(&e), EXF_FORMAT, e, "hidden-2 1048576 1048576 sha256");
    damage("point/hidden-2", CHUNK + 77);
    for (size_t at = 0; at < 200; at += 11) {
        damage("point/sums-1.safetensors", at);
        ck_fails(open_and_read(&e), EXF_FORMAT, e, "sums-1.safetensors sha256");
        damage("point/sums-1.safetensors", at);
    }
    ck_ok(open_and_read(&e), e);
}
END_TEST

START_TEST(a_flipped_bit_of_resume_json_is_never_taken)
{
    exf_file *f = NULL;
    save_two();
    ck_ok(exf_file_open(&f, exf_scratch("point/resume.json"), &e), e);
    size_t n = (size_t)exf_file_size(f);
    exf_file_close(f);
    ck_assert_uint_gt(n, 500);
    for (size_t at = 0; at < n; at++) {
        damage("point/resume.json", at);
        ck_assert_msg(open_and_read(&e) != EXF_OK, "a flipped bit of byte %zu of %zu is taken", at, n);
        damage("point/resume.json", at);
    }
    ck_ok(open_and_read(&e), e);
}
END_TEST

START_TEST(what_is_missing_is_named)
{
    save_two();
    unlink(exf_scratch("point/sums-0.safetensors"));
    ck_fails(open_and_read(&e), EXF_FORMAT, e, "sums-0.safetensors");
    remove_scratch(exf_scratch("point"));
    save_two();
    ck_assert_int_eq(truncate(exf_scratch("point/hidden-2"), 100), 0);
    ck_fails(open_and_read(&e), EXF_FORMAT, e, "hidden-2 100 run's");
    exf_write_file(exf_scratch("point/resume.json"), "{\"schema\": \"exfold-resume/0\"}", 29);
    ck_fails(open_and_read(&e), EXF_VERSION, e, "exfold-resume/0 exfold-resume/3");
    exf_write_file(exf_scratch("point/resume.json"), "{", 1);
    ck_fails(open_and_read(&e), EXF_FORMAT, e, "resume.json");
    unlink(exf_scratch("point/hidden-2"));
    exf_write_file(exf_scratch("point/resume.json"), "{}", 2);
    ck_assert_int_ne(open_and_read(&e), EXF_OK);
    remove_scratch(exf_scratch("point"));
    save_two();
    unlink(exf_scratch("point/hidden-2"));
    ck_fails(open_and_read(&e), EXF_FORMAT, e, "hidden-2");
    ck_assert(strstr(e.msg, "--resume=never") != NULL);
}
END_TEST

START_TEST(a_run_without_points_writes_nothing)
{
    exf_provenance facts = {0};
    exf_resume *r;
    exf_tensor t = sums_tensor();
    exf_resume_options o = {.directory = exf_scratch("point"), .facts = &facts};
    ck_ok(exf_resume_open(&r, &o, &e), e);
    ck_assert(!exf_resume_saves(r));
    ck_ok(exf_resume_put(r, "sums", 0, &t, 1, &e), e);
    ck_assert(!exf_resume_due(r, 1, 0));
    exf_resume_free(r);
    ck_assert_int_eq(files_left(), 0);
}
END_TEST

/* With 1 GB/s and 4 % a point of 100 GB waits 2500 s, whatever every_seconds says; every_layers is obeyed at once. */
START_TEST(a_large_point_waits_for_a_long_run)
{
    exf_provenance facts = {0};
    exf_resume *r;
    exf_resume_options o = {.directory = exf_scratch("point"), .facts = &facts, .every_seconds = 1e-9};
    ck_ok(exf_resume_open(&r, &o, &e), e);
    ck_assert_int_eq(nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL), 0);
    ck_assert(exf_resume_due(r, 1, 0));
    ck_assert(!exf_resume_due(r, 1, UINT64_C(100000000000)));
    exf_resume_free(r);
    o.every_layers = 2;
    ck_ok(exf_resume_open(&r, &o, &e), e);
    ck_assert(!exf_resume_due(r, 1, UINT64_C(100000000000)));
    ck_assert(exf_resume_due(r, 2, UINT64_C(100000000000)));
    exf_resume_free(r);
}
END_TEST

/* ---- what others made, and other runs ------------------------------------------------------- */

static const exf_resume_mode modes[] = {EXF_RESUME_AUTO, EXF_RESUME_REQUIRE, EXF_RESUME_NEVER};

/* A directory at the point's path with such a file in it is refused by name in every mode, and stays as it is. */
static void refuse_with(const char *name, exf_code code)
{
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
        exf_resume *r = NULL;
        int before = files_left();
        ck_fails(open_point(&r, modes[m], &e), code, e, name);
        ck_assert_ptr_null(r);
        ck_assert_int_eq(files_left(), before);
    }
}

START_TEST(a_directory_that_no_run_made_is_refused_by_name)
{
    static const char *const names[] = {"sums-0.safetensors", "model-00001-of-00002.safetensors", "hidden-1",
                                        ".resume.json.1.partial"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64];
        ck_assert_int_eq(mkdir(exf_scratch("point"), 0777), 0);
        snprintf(path, sizeof path, "point/%s", names[i]);
        exf_write_file(exf_scratch(path), "mine", 4);
        refuse_with(names[i], EXF_IO);
        remove_scratch(exf_scratch("point"));
    }
    ck_assert_int_eq(mkdir(exf_scratch("point"), 0777), 0);
    exf_write_file(exf_scratch("point/resume.json"), "{}", 2);
    refuse_with("point: holds resume.json but no exfold-resume-point", EXF_VERSION);
    exf_write_file(exf_scratch("point/exfold-resume-point"), "mine", 4);
    refuse_with("exfold-resume-point: is not the journal", EXF_IO);
}
END_TEST

START_TEST(a_point_with_a_file_that_its_journal_does_not_name_is_refused)
{
    static const char *const names[] = {"notes.txt", "sums-7.safetensors", "hidden-9", "model.safetensors"};
    save_two();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64];
        snprintf(path, sizeof path, "point/%s", names[i]);
        exf_write_file(exf_scratch(path), "mine", 4);
        refuse_with(names[i], EXF_IO);
        unlink(exf_scratch(path));
    }
    ck_ok(open_and_read(&e), e);
}
END_TEST

START_TEST(a_link_is_never_followed)
{
    save_two();
    ck_assert_int_eq(rename(exf_scratch("point"), exf_scratch("elsewhere")), 0);
    ck_assert_int_eq(symlink("elsewhere", exf_scratch("point")), 0);
    refuse_with("point: is no directory", EXF_IO);
    unlink(exf_scratch("point"));
    ck_assert_int_eq(rename(exf_scratch("elsewhere"), exf_scratch("point")), 0);
    unlink(exf_scratch("point/sums-0.safetensors"));
    exf_write_file(exf_scratch("weights"), "mine", 4);
    ck_assert_int_eq(symlink("../weights", exf_scratch("point/sums-0.safetensors")), 0);
    ck_assert_int_ne(open_and_read(&e), EXF_OK);
    exf_resume *r;
    ck_ok(open_point(&r, EXF_RESUME_NEVER, &e), e); /* the link has a name of the journal: the link goes, not the file */
    exf_resume_free(r);
    ck_assert(exf_path_exists(exf_scratch("weights")));
}
END_TEST

START_TEST(a_file_that_appears_during_a_run_stays)
{
    exf_resume *r;
    ck_ok(open_point(&r, EXF_RESUME_AUTO, &e), e);
    ck_ok(save_layers(r, 0, 2, &e), e);
    exf_write_file(exf_scratch("point/notes.txt"), "mine", 4);
    exf_write_file(exf_scratch("point/sums-2.safetensors"), "mine", 4);
    ck_assert_int_ne(save_layers(r, 2, 3, &e), EXF_OK); /* another's file has the record's name */
    ck_fails(exf_resume_remove(r, &e), EXF_IO, e, "notes.txt");
    exf_resume_free(r);
    ck_assert(exf_path_exists(exf_scratch("point/notes.txt")));
    ck_assert(exf_path_exists(exf_scratch("point/sums-2.safetensors")));
    ck_assert(!exf_path_exists(exf_scratch("point/sums-0.safetensors")));
    ck_assert(!exf_path_exists(exf_scratch("point/hidden-2")));
}
END_TEST

/* Each name under which a run writes may be taken by another's file meanwhile, before the run makes its own. */
START_TEST(no_name_that_appears_during_a_run_is_written_over)
{
    static const char *const names[] = {"sums-0.safetensors", "hidden-2", "resume.json.new", "resume.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64], *bytes = NULL;
        size_t n;
        exf_resume *r;
        snprintf(path, sizeof path, "point/%s", names[i]);
        ck_ok(open_point(&r, EXF_RESUME_AUTO, &e), e);
        exf_write_file(exf_scratch(path), "mine", 4);
        ck_fails(save_layers(r, 0, 2, &e), EXF_IO, e, names[i]);
        ck_fails(exf_resume_remove(r, &e), EXF_IO, e, "");
        exf_resume_free(r);
        ck_ok(exf_file_slurp(exf_scratch(path), 100, &bytes, &n, &e), e);
        ck_assert(n == 4 && memcmp(bytes, "mine", 4) == 0);
        exf_mem_free(bytes);
        remove_scratch(exf_scratch("point"));
    }
}
END_TEST

START_TEST(one_run_at_a_time_uses_a_point)
{
    exf_resume *first;
    save_two();
    ck_ok(open_point(&first, EXF_RESUME_AUTO, &e), e);
    refuse_with("point: another exfold program uses this resume point", EXF_IO);
    ck_ok(read_two(first, &e), e);
    exf_resume_free(first);
    ck_ok(open_and_read(&e), e);
}
END_TEST

/* A run that was killed at any byte of its journal: the next one takes it and cleans up. */
START_TEST(a_journal_that_was_cut_or_torn_is_taken)
{
    char *bytes = NULL;
    size_t n;
    exf_resume *r;
    save_two();
    ck_ok(exf_file_slurp(exf_scratch("point/exfold-resume-point"), 1 << 20, &bytes, &n, &e), e);
    size_t title = (size_t)(strchr(bytes, '\n') + 1 - bytes);
    remove_scratch(exf_scratch("point"));
    for (size_t zeros = 0; zeros < 2; zeros++)
        for (size_t cut = 0; cut <= title; cut += cut + 8 < title ? 5 : 1) {
            char *torn = strndup(bytes, title);
            if (zeros) memset(torn + cut, 0, title - cut);
            ck_assert_int_eq(mkdir(exf_scratch("point"), 0777), 0);
            exf_write_file(exf_scratch("point/exfold-resume-point"), torn, zeros ? title : cut);
            free(torn);
            ck_ok(open_point(&r, EXF_RESUME_AUTO, &e), e);
            ck_ok(save_layers(r, 0, 1, &e), e);
            ck_ok(exf_resume_remove(r, &e), e);
            exf_resume_free(r);
            ck_assert_int_eq(files_left(), 0);
        }
    save_two();
    exf_write_file(exf_scratch("point/exfold-resume-point"), bytes, n - 3); /* the last name was not made yet */
    ck_assert_int_ne(open_and_read(&e), EXF_OK);
    exf_mem_free(bytes);
}
END_TEST

START_TEST(a_forged_journal_reaches_nothing_outside)
{
    static const char *const lines[] = {"file ../weights", "file /etc/passwd", "output ../weights", "output weights",
                                        "output .weights", "file ", "weights", "file .."};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char text[256];
        exf_write_file(exf_scratch("weights"), "mine", 4);
        ck_assert_int_eq(mkdir(exf_scratch("point"), 0777), 0);
        int n = snprintf(text, sizeof text, "exfold resume point 1: an exfold program made the files named here\n%s\n", lines[i]);
        exf_write_file(exf_scratch("point/exfold-resume-point"), text, (size_t)n);
        refuse_with("no line of a resume point", EXF_FORMAT);
        ck_assert(exf_path_exists(exf_scratch("weights")));
        remove_scratch(exf_scratch("point"));
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start, end);
    tcase_add_test(t, a_point_is_read_back_as_it_was_saved);
    tcase_add_test(t, a_run_that_went_on_saves_the_next_point);
    tcase_add_test(t, the_point_of_another_run_is_refused);
    tcase_add_test(t, a_flipped_bit_is_found);
    tcase_add_test(t, a_flipped_bit_of_resume_json_is_never_taken);
    tcase_add_test(t, what_is_missing_is_named);
    tcase_add_test(t, a_run_without_points_writes_nothing);
    tcase_add_test(t, a_large_point_waits_for_a_long_run);
    tcase_add_test(t, a_directory_that_no_run_made_is_refused_by_name);
    tcase_add_test(t, a_point_with_a_file_that_its_journal_does_not_name_is_refused);
    tcase_add_test(t, a_link_is_never_followed);
    tcase_add_test(t, a_file_that_appears_during_a_run_stays);
    tcase_add_test(t, no_name_that_appears_during_a_run_is_written_over);
    tcase_add_test(t, one_run_at_a_time_uses_a_point);
    tcase_add_test(t, a_journal_that_was_cut_or_torn_is_taken);
    tcase_add_test(t, a_forged_journal_reaches_nothing_outside);
}
