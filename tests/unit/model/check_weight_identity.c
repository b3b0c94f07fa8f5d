/* check_weight_identity.c - src/model/weight_identity: the digest of the weights that were read. */
#include "tests/support/model_fixtures.h"

#include "base/hash.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static exf_err e;

static const char expert[] = "model.layers.1.mlp.experts.1.up_proj.weight";

static exf_model *open_model(void)
{
    exf_model *m = NULL;
    ck_ok(open_scratch(&m, &e), e);
    return m;
}

/* Reads the tensors of a role in a layer, the last expert first. */
static void read_role(const exf_model *m, exf_role role, int layer)
{
    float v[64];
    for (int i = exf_model_copies(m, role, layer) - 1; i >= 0; i--) ck_ok(exf_model_read(m, role, layer, i, v, &e), e);
}

static void read_layer(const exf_model *m, int layer, int backwards)
{
    int n = EXF_W_COUNT - EXF_W_FIRST_IN_LAYER;
    for (int i = 0; i < n; i++) read_role(m, (exf_role)(EXF_W_FIRST_IN_LAYER + (backwards ? n - 1 - i : i)), layer);
}

static void settle(const exf_model *m)
{
    for (int l = 0; l < T_L; l++) ck_ok(exf_model_layer_done(m, l, &e), e);
    ck_ok(exf_model_layer_done(m, -1, &e), e);
}

static void read_all(const exf_model *m, int backwards)
{
    for (int role = 0; role < EXF_W_FIRST_IN_LAYER; role++) read_role(m, (exf_role)role, -1);
    for (int l = 0; l < T_L; l++) read_layer(m, backwards ? T_L - 1 - l : l, backwards);
}

static void list_of(const exf_model *m, exf_text *out)
{
    *out = (exf_text){0};
    ck_ok(exf_weight_identity_list(m->identity, 0, out, &e), e);
}

static void places_of(const exf_model *m, exf_text *out)
{
    *out = (exf_text){0};
    ck_ok(exf_weight_identity_list(m->identity, 1, out, &e), e);
}

/* The identity of the checkpoint in the scratch directory, read whole. */
static void identify(exf_text *out)
{
    exf_model *m = open_model();
    read_all(m, 0);
    settle(m);
    list_of(m, out);
    exf_model_close(m);
}

/* ---- what counts -------------------------------------------------------------------------- */

/* Returns the number of parts of a that have another digest in b. */
static int parts_that_differ(const char *a, const char *b)
{
    exf_digest_entry entry;
    char other[EXF_SHA256_HEX];
    int n = 0;
    while (exf_digest_list_next(&a, &entry) == 1) {
        ck_assert(exf_digest_list_find(b, entry.name, other));
        n += strcmp(entry.hex, other) != 0;
    }
    return n;
}

START_TEST(every_weight_counts)
{
    exf_text before, after;
    small_model s = small_new(1);
    small_write(&s, 0);
    identify(&before);
    for (int i = 0; i < s.n; i++) {
        float was = s.value[i][1];
        s.value[i][1] = was + 1;
        small_write(&s, 0);
        identify(&after);
        ck_assert_msg(parts_that_differ(before.s, after.s) == 1, "%s has changed: %d parts differ", s.name[i],
                      parts_that_differ(before.s, after.s));
        s.value[i][1] = was;
        exf_text_free(&after);
    }
    small_write(&s, 0);
    identify(&after);
    ck_assert_str_eq(before.s, after.s);
    exf_text_free(&before);
    exf_text_free(&after);
    small_free(&s);
}
END_TEST

START_TEST(formats_count)
{
    exf_text before, after;
    small_model s = small_new(1);
    int i = small_find(&s, expert);
    memset(s.value[i], 0, (size_t)(s.shape[i][0] * s.shape[i][1]) * sizeof(float)); /* zeros are the same bytes in both formats */
    small_write(&s, 0);
    identify(&before);
    s.dtype[i] = EXF_DT_F16;
    small_write(&s, 0);
    identify(&after);
    ck_assert_int_eq(parts_that_differ(before.s, after.s), 1);
    exf_text_free(&before);
    exf_text_free(&after);
    small_free(&s);
}
END_TEST

START_TEST(parts_have_names)
{
    static const char *const names[] = {"embedding", "head", "0.other", "1.experts", "1.other"};
    char hex[EXF_SHA256_HEX];
    exf_text list;
    small_model s = small_new(1);
    small_write(&s, 0);
    identify(&list);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) ck_assert(exf_digest_list_find(list.s, names[i], hex));
    ck_assert_uint_eq(list.len, 5 * (64 + 1) + 9 + 4 + 7 + 9 + 7 + 4);
    exf_text_free(&list);
    small_free(&s);
}
END_TEST

/* ---- what does not ------------------------------------------------------------------------ */

START_TEST(order_and_repetition_do_not_count)
{
    exf_text forwards, backwards;
    small_model s = small_new(1);
    small_write(&s, 0);
    identify(&forwards);
    exf_model *m = open_model();
    read_all(m, 1);
    read_layer(m, 1, 0);
    settle(m);
    read_all(m, 0);
    settle(m);
    list_of(m, &backwards);
    ck_assert_str_eq(forwards.s, backwards.s);
    exf_model_close(m);
    exf_text_free(&forwards);
    exf_text_free(&backwards);
    small_free(&s);
}
END_TEST

START_TEST(a_tied_head_is_the_embedding)
{
    char hex[EXF_SHA256_HEX];
    exf_text list;
    small_model s = small_new(0);
    small_write(&s, 1);
    exf_model *m = open_model();
    read_role(m, EXF_W_EMBED, -1);
    ck_ok(exf_weight_identity_settle(m->identity, EXF_PART_EMBEDDING, &e), e);
    read_role(m, EXF_W_HEAD, -1);
    ck_ok(exf_model_layer_done(m, -1, &e), e);
    list_of(m, &list);
    ck_assert(exf_digest_list_find(list.s, "embedding", hex));
    ck_assert(!exf_digest_list_find(list.s, "head", hex));
    exf_text_free(&list);
    exf_model_close(m);
    small_free(&s);
}
END_TEST

/* A tensor of more than one piece is hashed alike however its bytes come. */
START_TEST(pieces_do_not_depend_on_reads)
{
    enum { N = 3 * EXF_WEIGHT_CHUNK_BYTES + 1000 };
    char *bytes = NULL;
    exf_text list[2];
    exf_st_tensor tensor = {.view = {.name = "x", .dtype = EXF_DT_U8, .rank = 1, .shape = {N}}};
    exf_stored_tensor of = {.tensor = &tensor};
    exf_weight_place place = {.part = EXF_PART_HEAD};
    char hex[EXF_XXH3_HEX];
    ck_ok(exf_mem_new(&bytes, N, 1, "test data", &e), e);
    for (size_t i = 0; i < N; i++) bytes[i] = (char)(i * 7 + i / 1000);
    for (int k = 0; k < 2; k++) {
        exf_weight_identity *id = NULL;
        size_t step = k ? 777777 : EXF_WEIGHT_CHUNK_BYTES;
        ck_ok(exf_weight_identity_new(&id, 1, &e), e);
        exf_piece_hash p = {.id = id, .place = place, .of = &of, .piece = EXF_WEIGHT_CHUNK_BYTES};
        exf_code rc = EXF_OK;
        for (size_t at = 0; at < N; at += step) {
            size_t n = N - at < step ? N - at : step;
            if (!k) exf_xxh3_bytes(bytes + at, n, hex);
            rc = k ? exf_piece_hash_add(&p, bytes + at, n, &e) : exf_weight_identity_add(id, &place, &of, at, n, hex, &e);
            ck_ok(rc, e);
        }
        ck_ok(exf_piece_hash_end(&p, rc, &e), e);
        ck_ok(exf_weight_identity_settle(id, EXF_PART_HEAD, &e), e);
        list[k] = (exf_text){0};
        ck_ok(exf_weight_identity_list(id, 0, &list[k], &e), e);
        exf_weight_identity_free(id);
    }
    ck_assert_str_eq(list[0].s, list[1].s);
    exf_text_free(&list[0]);
    exf_text_free(&list[1]);
    exf_mem_free(bytes);
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------ */

/* Flips a bit of the last byte of the checkpoint in place; the time of the change is the file's before if kept. */
static void flip_last_bit(int keep_time)
{
    struct stat was;
    unsigned char last;
    int fd = open(exf_scratch("model.safetensors"), O_RDWR);
    ck_assert(fd >= 0 && fstat(fd, &was) == 0);
    ck_assert(pread(fd, &last, 1, was.st_size - 1) == 1);
    last ^= 1;
    ck_assert(pwrite(fd, &last, 1, was.st_size - 1) == 1);
    struct timespec times[2] = {was.st_atim, was.st_mtim};
    if (!keep_time) times[1].tv_sec++;
    ck_assert(futimens(fd, times) == 0);
    close(fd);
}

/* Settles every part, without a look at the file itself. */
static exf_code settle_parts(const exf_model *m)
{
    exf_code rc = EXF_OK;
    for (int part = 0; rc == EXF_OK && part < EXF_PART_LAYERS + 2 * T_L; part++)
        rc = exf_weight_identity_settle(m->identity, part, &e);
    return rc;
}

START_TEST(a_change_between_two_reads_is_refused)
{
    small_model s = small_new(1);
    small_write(&s, 0);
    exf_model *m = open_model();
    read_all(m, 0);
    flip_last_bit(1);
    read_all(m, 0);
    ck_fails(settle_parts(m), EXF_MODEL, e, "model.safetensors \"model.norm.weight\"");
    exf_model_close(m);
    small_free(&s);
}
END_TEST

START_TEST(a_change_between_two_passes_is_refused)
{
    small_model s = small_new(1);
    small_write(&s, 0);
    exf_model *m = open_model();
    read_all(m, 0);
    settle(m);
    flip_last_bit(1);
    read_all(m, 0);
    ck_fails(settle_parts(m), EXF_MODEL, e, "model.safetensors c04fcffc5b77");
    exf_model_close(m);
    small_free(&s);
}
END_TEST

START_TEST(a_file_that_changes_is_refused)
{
    small_model s = small_new(1);
    small_write(&s, 0);
    exf_model *m = open_model();
    read_all(m, 0);
    flip_last_bit(0);
    ck_fails(exf_model_layer_done(m, 0, &e), EXF_MODEL, e, "model.safetensors");
    ck_assert_ptr_nonnull(strstr(e.msg, ", is inode "));
    exf_model_close(m);
    m = open_model();
    small_write(&s, 0); /* another file under the same name */
    ck_fails(exf_model_layer_done(m, -1, &e), EXF_MODEL, e, "model.safetensors 4032");
    unlink(exf_scratch("model.safetensors"));
    ck_fails(exf_model_layer_done(m, -1, &e), EXF_IO, e, "model.safetensors");
    exf_model_close(m);
    small_free(&s);
}
END_TEST

/* The time of modification is the user's to set, that of the change is not. */
START_TEST(a_change_whose_time_was_set_back_is_refused)
{
    small_model s = small_new(1);
    small_write(&s, 0);
    exf_model *m = open_model();
    struct timespec later = {.tv_nsec = 50000000}; /* more than the file system's clock takes to move on */
    nanosleep(&later, NULL);
    read_all(m, 0);
    flip_last_bit(1);
    ck_fails(exf_model_layer_done(m, 0, &e), EXF_MODEL, e, "model.safetensors");
    exf_model_close(m);
    small_free(&s);
}
END_TEST

START_TEST(other_weights_than_expected_are_refused)
{
    exf_text list;
    small_model s = small_new(1);
    small_write(&s, 0);
    identify(&list);
    exf_model *m = open_model();
    ck_ok(exf_weight_identity_expect(m->identity, list.s, NULL, "t.h5", &e), e);
    read_all(m, 0);
    settle(m);
    exf_model_close(m);
    float *w = s.value[small_find(&s, expert)];
    for (int i = 0; i < 12; i++) w[i] = -w[i];
    small_write(&s, 0);
    m = open_model();
    ck_ok(exf_weight_identity_expect(m->identity, list.s, NULL, "t.h5", &e), e);
    read_all(m, 0);
    ck_ok(exf_model_layer_done(m, 0, &e), e);
    ck_fails(exf_model_layer_done(m, 1, &e), EXF_MODEL, e, "t.h5 1.experts");
    exf_model_close(m);
    exf_text_free(&list);
    small_free(&s);
}
END_TEST

/* What a run over the checkpoint in the scratch directory says that expects those weights. */
static exf_code read_beside(const char *list, const char *by_place)
{
    exf_model *m = open_model();
    ck_ok(exf_weight_identity_expect(m->identity, list, by_place, "t.h5", &e), e);
    read_all(m, 0);
    exf_code rc = settle_parts(m);
    exf_model_close(m);
    return rc;
}

/* A copy with its experts in two tensors has the same bytes at the same places; one bit, or two experts in each other's place, make
 * other weights. */
START_TEST(stacked_experts_are_the_same_weights)
{
    exf_text list, by_place, fused_list, fused_by_place;
    small_model s = small_new(1);
    small_write(&s, 0);
    exf_model *m = open_model();
    read_all(m, 0);
    settle(m);
    list_of(m, &list);
    places_of(m, &by_place);
    exf_model_close(m);
    small_fuse(&s);
    small_write(&s, 0);
    m = open_model();
    read_all(m, 1);
    settle(m);
    list_of(m, &fused_list);
    places_of(m, &fused_by_place);
    exf_model_close(m);
    ck_assert_int_eq(parts_that_differ(list.s, fused_list.s), 1);
    ck_assert_str_eq(by_place.s, fused_by_place.s);
    ck_ok(read_beside(list.s, by_place.s), e);
    ck_fails(read_beside(list.s, NULL), EXF_MODEL, e, "t.h5 1.experts");
    float *w = s.value[small_find(&s, "model.layers.1.mlp.experts.gate_up_proj")];
    w[T_I * T_H] += 1;
    small_write(&s, 0);
    ck_fails(read_beside(list.s, by_place.s), EXF_MODEL, e, "t.h5 1.experts");
    w[T_I * T_H] -= 1;
    for (int i = 0; i < 2 * T_I * T_H; i++) {
        float first = w[i];
        w[i] = w[i + 2 * T_I * T_H];
        w[i + 2 * T_I * T_H] = first;
    }
    small_write(&s, 0);
    ck_fails(read_beside(list.s, by_place.s), EXF_MODEL, e, "t.h5 1.experts");
    exf_text_free(&list);
    exf_text_free(&by_place);
    exf_text_free(&fused_list);
    exf_text_free(&fused_by_place);
    small_free(&s);
}
END_TEST

START_TEST(restored_parts_stay)
{
    exf_text before, by_place, after;
    small_model s = small_new(1);
    small_write(&s, 0);
    exf_model *m = open_model();
    read_all(m, 0);
    settle(m);
    list_of(m, &before);
    places_of(m, &by_place);
    exf_model_close(m);
    m = open_model();
    ck_ok(exf_weight_identity_restore(m->identity, before.s, by_place.s, "record", &e), e);
    read_layer(m, 1, 0);
    settle(m);
    list_of(m, &after);
    ck_assert_str_eq(before.s, after.s);
    exf_text_free(&after);
    places_of(m, &after);
    ck_assert_str_eq(by_place.s, after.s);
    static const char *const malformed[] = {
        "x", "head:ab", "7.other:0000000000000000000000000000000000000000000000000000000000000000"};
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        ck_fails(exf_weight_identity_restore(m->identity, malformed[i], by_place.s, "record", &e), EXF_FORMAT, e, "model's");
        ck_fails(exf_weight_identity_restore(m->identity, before.s, malformed[i], "record", &e), EXF_FORMAT, e, "model's");
    }
    exf_model_close(m);
    exf_text_free(&by_place);
    exf_text_free(&before);
    exf_text_free(&after);
    small_free(&s);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, every_weight_counts);
    tcase_add_test(t, formats_count);
    tcase_add_test(t, parts_have_names);
    tcase_add_test(t, order_and_repetition_do_not_count);
    tcase_add_test(t, a_tied_head_is_the_embedding);
    tcase_add_test(t, pieces_do_not_depend_on_reads);
    tcase_add_test(t, a_change_between_two_reads_is_refused);
    tcase_add_test(t, a_change_between_two_passes_is_refused);
    tcase_add_test(t, a_file_that_changes_is_refused);
    tcase_add_test(t, a_change_whose_time_was_set_back_is_refused);
    tcase_add_test(t, other_weights_than_expected_are_refused);
    tcase_add_test(t, stacked_experts_are_the_same_weights);
    tcase_add_test(t, restored_parts_stay);
}
