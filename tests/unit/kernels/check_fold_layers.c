/* check_fold_layers.c - exfold/fold.h, the tables of a model: files as the exporter writes them, files with a fault, arrays of a
 * caller's own. */
#include "exfold/fold.h"
#include "format/safetensors.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { L = 2, E = 3, MATRIX = E * E };
static float coeff[L * MATRIX], loss[L * MATRIX], norms[L * E];
static int32_t targets[L * E] = {0, 0, 2, 1, 1, 1};
static char why[200];

static void fill(void)
{
    for (int i = 0; i < L * MATRIX; i++) {
        coeff[i] = (float)i / 4;
        loss[i] = i % 4 ? .5f : EXF_FOLD_NEVER;
    }
    for (int i = 0; i < L * E; i++) norms[i] = (float)(i + 1);
}

/* ---- as the exporter writes ----------------------------------------------------------------- */

START_TEST(an_exported_file_is_opened)
{
    exf_err err;
    exf_fold_tables t;
    exf_fold_array a;
    exf_fold_layers l = EXF_FOLD_LAYERS_INIT;
    const exf_tensor tensors[] = {
        {.name = "coeff", .dtype = EXF_DT_F32, .rank = 3, .shape = {L, E, E}, .data = coeff},
        {.name = "loss", .dtype = EXF_DT_F32, .rank = 3, .shape = {L, E, E}, .data = loss},
        {.name = "expert_norms", .dtype = EXF_DT_F32, .rank = 2, .shape = {L, E}, .data = norms},
        {.name = "pools.1.target_ids", .dtype = EXF_DT_I32, .rank = 2, .shape = {L, E}, .data = targets},
    };
    const exf_st_meta meta[] = {{"layer_numbers", "[3, 7]"}, {"recipe", "a \"quoted\" \\ text\n"}};
    const char *path = exf_scratch("tables.safetensors");
    fill();
    ck_ok(exf_st_write(path, 1, tensors, COUNT(tensors), meta, COUNT(meta), NULL, &err), err);
    ck_assert_msg(exf_fold_layers_load(&l, path, why, sizeof why) == EXF_FOLD_OK, "%s", why);
    ck_assert(l.n_layers == L && l.n_experts == E && !l.cosine && !l.rms && why[0] == '\0');
    ck_assert(!memcmp(l.coeff, coeff, sizeof coeff) && !memcmp(l.loss, loss, sizeof loss) && !memcmp(l.norms, norms, sizeof norms));
    ck_assert(exf_fold_layers_index(&l, 3) == 0 && exf_fold_layers_index(&l, 7) == 1 && exf_fold_layers_index(&l, 0) == -1);
    ck_assert_int_eq(exf_fold_layers_at(&l, 7, &t), EXF_FOLD_OK);
    ck_assert(t.n_experts == E && t.coeff[1] == coeff[MATRIX + 1] && t.loss == l.loss + MATRIX && t.norms[0] == 4 && !t.rms);
    ck_assert_int_eq(exf_fold_layers_at(&l, 4, &t), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_layers_find(&l, "pools.1.target_ids", &a), EXF_FOLD_OK);
    ck_assert(!strcmp(a.type, "I32") && a.n_dims == 2 && a.shape[0] == L && a.shape[1] == E && a.bytes == sizeof targets);
    ck_assert(!memcmp(a.data, targets, sizeof targets));
    ck_assert_int_eq(exf_fold_layers_find(&l, "pools.2.target_ids", &a), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_layers_load(&l, path, why, sizeof why), EXF_FOLD_BAD_ARGUMENT); /* it is open */
    exf_fold_layers_free(&l);
    ck_assert(!l.file && !l.coeff && exf_fold_layers_index(&l, 3) == -1);
    exf_fold_layers_free(&l);
    exf_fold_layers_free(NULL);
}
END_TEST

/* ---- files by hand ------------------------------------------------------------------------------ */

static uint64_t file[4096];

/* Lays out a file of this header and two matrices of `number`, and reads it. */
static exf_fold_status read_file(exf_fold_layers *l, const char *header, float number)
{
    unsigned char *bytes = (unsigned char *)file;
    size_t n = (strlen(header) + 7) / 8 * 8;
    ck_assert_uint_le(n + 8 + 2 * MATRIX * 4, sizeof file);
    memset(file, ' ', sizeof file);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(n >> 8 * i);
    memcpy(bytes + 8, header, strlen(header));
    for (int i = 0; i < 2 * MATRIX; i++) memcpy(bytes + 8 + n + i * 4, &number, 4);
    *l = (exf_fold_layers)EXF_FOLD_LAYERS_INIT;
    memset(why, 'x', sizeof why);
    return exf_fold_layers_read(l, file, 8 + n + 2 * MATRIX * 4, why, sizeof why);
}

#define COEFF "\"coeff\":{\"dtype\":\"F32\",\"shape\":[1,3,3],\"data_offsets\":[0,36]}"
#define LOSS "\"loss\":{\"dtype\":\"F32\",\"shape\":[1,3,3],\"data_offsets\":[36,72]}"

static const char *const good[] = {
    "{" COEFF "," LOSS "}",
    " { " LOSS " , " COEFF " } \n ",
    "{\"__metadata__\":{}," COEFF "," LOSS "}",
    "{" COEFF "," LOSS ",\"__metadata__\":{\"x\":\"a \\\" \\\\\",\"layer_numbers\":\"[5]\"}}",
    "{" COEFF "," LOSS ",\"of another type\":{\"dtype\":\"F8_E4M3\",\"shape\":[],\"data_offsets\":[72,72]}}",
    "{" COEFF "," LOSS ",\"empty\":{\"dtype\":\"I64\",\"shape\":[0,9223372036854775807],\"data_offsets\":[0,0]}}",
};

START_TEST(files_that_the_format_allows)
{
    exf_fold_layers l;
    exf_fold_tables t;
    ck_assert_msg(read_file(&l, good[_i], .5f) == EXF_FOLD_OK, "%s", why);
    ck_assert(l.n_layers == 1 && l.n_experts == 3 && l.loss == l.coeff + MATRIX && !l.norms);
    ck_assert_int_eq(exf_fold_layers_at(&l, _i == 3 ? 5 : 0, &t), EXF_FOLD_OK);
    exf_fold_layers_free(&l);
}
END_TEST

/* A header, and a word that the reason has. */
static const struct {
    const char *header, *word;
} bad[] = {
    {"", "'{'"},
    {"[]", "'{'"},
    {"{", "'\"'"},
    {"{}", "coeff"},
    {"{" COEFF "}", "loss"},
    {"{" LOSS "}", "coeff"},
    {"{" COEFF "," LOSS, "'}'"},
    {"{" COEFF "," LOSS ",}", "'\"'"},
    {"{" COEFF "," LOSS "} x", "after"},
    {"{" COEFF "," LOSS "," COEFF "}", "twice"},
    {"{\"__metadata__\":{},\"__metadata__\":{}," COEFF "," LOSS "}", "twice"},
    {"{\"__metadata__\":{\"x\":1}," COEFF "," LOSS "}", "'\"'"},
    {"{" COEFF "," LOSS ",\"__metadata__\":{\"layer_numbers\":\"[1, 2]\"}}", "layer_numbers"},
    {"{" COEFF "," LOSS ",\"__metadata__\":{\"layer_numbers\":\"[1] \"}}", "layer_numbers"},
    {"{" COEFF "," LOSS ",\"__metadata__\":{\"layer_numbers\":\"1\"}}", "layer_numbers"},
    {"{" COEFF "," LOSS ",\"__metadata__\":{\"layer_numbers\":\"[4294967296]\"}}", "layer_numbers"},
    {"{" COEFF ",\"loss", "end"},
    {"{" COEFF ",\"lo\nss\":{}}", "control"},
    {"{" COEFF ",\"loss\":{\"shape\":[1,3,3],\"data_offsets\":[36,72]}}", "lacks"},
    {"{" COEFF ",\"loss\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1,3,3],\"data_offsets\":[36,72]}}", "twice"},
    {"{" COEFF ",\"loss\":{\"dtype\":\"F32\",\"shape\":[1,3,3],\"data_offsets\":[36,72],\"x\":0}}", "\"x\""},
    {"{" COEFF ",\"loss\":{\"dtype\":\"F32\",\"shape\":[1,3,3],\"data_offsets\":[40,76]}}", "76"},
    {"{" COEFF ",\"loss\":{\"dtype\":\"F32\",\"shape\":[1,3,3],\"data_offsets\":[72,36]}}", "36"},
    {"{" COEFF ",\"loss\":{\"dtype\":\"F32\",\"shape\":[1,3,3],\"data_offsets\":[36]}}", "data_offsets"},
    {"{" COEFF ",\"loss\":{\"dtype\":\"F32\",\"shape\":[1,3,3],\"data_offsets\":[36,72,73]}}", "2"},
    {"{" COEFF ",\"loss\":{\"dtype\":\"F32\",\"shape\":[1,3,3],\"data_offsets\":[36,68]}}", "32"},
    {"{" COEFF ",\"loss\":{\"dtype\":\"F32\",\"shape\":[1,3,2],\"data_offsets\":[36,60]}}", "F32"},
    {"{" COEFF ",\"loss\":{\"dtype\":\"I32\",\"shape\":[1,3,3],\"data_offsets\":[36,72]}}", "F32"},
    {"{" COEFF ",\"loss\":{\"dtype\":\"F32\",\"shape\":[1,9],\"data_offsets\":[36,72]}}", "F32"},
    {"{" COEFF ",\"loss\":{\"dtype\":\"F32\",\"shape\":[1,3,3],\"data_offsets\":[34,70]}}", "4"},
    {"{" COEFF ",\"loss\":{\"dtype\":\"F32\",\"shape\":[01,3,3],\"data_offsets\":[36,72]}}", "whole"},
    {"{" COEFF ",\"loss\":{\"dtype\":\"F32\",\"shape\":[-1,3,3],\"data_offsets\":[36,72]}}", "whole"},
    {"{" COEFF ",\"loss\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[36,72]}}", "2^63"},
    {"{" COEFF ",\"loss\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,3],\"data_offsets\":[36,72]}}", "36"},
    {"{" COEFF ",\"loss\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[36,40]}}", "8"},
    {"{" COEFF ",\"loss\":{\"dtype\":\"FLOAT_32\",\"shape\":[1,3,3],\"data_offsets\":[36,72]}}", "8"},
    {"{\"coeff\":{\"dtype\":\"F32\",\"shape\":[1,2,2],\"data_offsets\":[0,16]}," LOSS "}", "2"},
    {"{\"coeff\":{\"dtype\":\"F32\",\"shape\":[0,3,3],\"data_offsets\":[0,0]}," LOSS "}", "0"},
    {"{" COEFF "," LOSS ",\"expert_norms\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", "expert_norms"},
    {"{" COEFF "," LOSS ",\"rms\":{\"dtype\":\"F16\",\"shape\":[1,3],\"data_offsets\":[0,6]}}", "rms"},
    {"{" COEFF "," LOSS ",\"cosine\":{\"dtype\":\"F32\",\"shape\":[2,3,3],\"data_offsets\":[0,72]}}", "cosine"},
};

START_TEST(files_with_a_fault_are_refused)
{
    exf_fold_layers l;
    ck_assert_int_eq(read_file(&l, bad[_i].header, .5f), EXF_FOLD_FILE);
    ck_assert_msg(strstr(why, bad[_i].word) != NULL && strlen(why) < sizeof why, "\"%s\" does not say \"%s\"", why, bad[_i].word);
    ck_assert(!l.file && !l.coeff && l.n_layers == 0 && l.size == EXF_FOLD_SIZED(exf_fold_layers));
}
END_TEST

/* A name of a file cannot speak to a terminal: ESC is refused, DEL and bytes beyond ASCII are shown as question marks. */
START_TEST(reasons_are_plain_text)
{
    exf_fold_layers l;
    ck_assert_int_eq(read_file(&l, "{\"\x7f\xc2\x9b\xff\":{\"x\":0}}", .5f), EXF_FOLD_FILE);
    ck_assert_ptr_ne(strstr(why, "????"), NULL);
    for (const char *c = why; *c; c++) ck_assert(*c >= 0x20 && *c < 0x7f);
}
END_TEST

START_TEST(numbers_are_finite)
{
    exf_fold_layers l;
    ck_assert_int_eq(read_file(&l, good[0], NAN), EXF_FOLD_FILE);
    ck_assert_ptr_ne(strstr(why, "finite"), NULL);
    ck_assert_int_eq(read_file(&l, good[0], -INFINITY), EXF_FOLD_FILE);
}
END_TEST

/* No end of a file, nor of its header, is read beyond. */
START_TEST(files_that_end_early_are_refused)
{
    exf_fold_layers l;
    unsigned char *whole = (unsigned char *)file;
    ck_assert_int_eq(read_file(&l, good[3], .5f), EXF_FOLD_OK);
    exf_fold_layers_free(&l);
    size_t n = 8 + (strlen(good[3]) + 7) / 8 * 8 + 2 * MATRIX * 4;
    for (size_t some = 0; some < n; some++) {
        void *bytes = aligned_alloc(8, (some + 8) / 8 * 8); /* a sanitizer sees what is read after it */
        memcpy(bytes, file, some);
        ck_assert_int_eq(exf_fold_layers_read(&l, bytes, some, NULL, 0), EXF_FOLD_FILE);
        free(bytes);
    }
    whole[7] = 1;
    ck_assert_int_eq(exf_fold_layers_read(&l, file, n, why, 10), EXF_FOLD_FILE);
    ck_assert_uint_eq(strlen(why), 9);
}
END_TEST

START_TEST(files_that_cannot_be_read)
{
    exf_fold_layers l = EXF_FOLD_LAYERS_INIT, open = EXF_FOLD_LAYERS_INIT;
    const char *h5 = exf_scratch("tables.h5");
    exf_write_file(h5, "\x89HDF\r\n\x1a\n--------", 16);
    ck_assert_int_eq(exf_fold_layers_load(&l, h5, why, sizeof why), EXF_FOLD_FILE);
    ck_assert(!strncmp(why, h5, strlen(h5)) && strstr(why, "exfold-export"));
    ck_assert_int_eq(exf_fold_layers_load(&l, exf_scratch("none"), why, sizeof why), EXF_FOLD_FILE);
    ck_assert_ptr_ne(strstr(why, "none: "), NULL);
    ck_assert_int_eq(exf_fold_layers_load(&l, "/", NULL, 0), EXF_FOLD_FILE);
    ck_assert_int_eq(exf_fold_layers_load(&l, "/dev/null", why, 4), EXF_FOLD_FILE);
    ck_assert_str_eq(why, "/de");
    ck_assert_int_eq(exf_fold_layers_load(&l, NULL, NULL, 0), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_layers_load(NULL, h5, NULL, 0), EXF_FOLD_BAD_ARGUMENT);
    open.size = 0;
    ck_assert_int_eq(exf_fold_layers_load(&open, h5, NULL, 0), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_layers_read(&l, (char *)file + 4, 100, NULL, 0), EXF_FOLD_BAD_ARGUMENT);
}
END_TEST

/* ---- arrays of a caller's own -------------------------------------------------------------------- */

START_TEST(own_arrays_are_layers_too)
{
    exf_fold_layers l = EXF_FOLD_LAYERS_INIT;
    exf_fold_tables t;
    exf_fold_array a;
    fill();
    ck_assert_int_eq(exf_fold_layers_at(&l, 0, &t), EXF_FOLD_BAD_ARGUMENT); /* none yet */
    l.n_layers = L;
    l.n_experts = E;
    l.coeff = coeff;
    l.norms = norms;
    ck_assert_int_eq(exf_fold_layers_at(&l, 1, &t), EXF_FOLD_OK);
    ck_assert(t.coeff == coeff + MATRIX && t.norms == norms + E && !t.loss && !t.cosine && t.n_experts == E);
    ck_assert_int_eq(exf_fold_layers_at(&l, L, &t), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_layers_at(&l, -1, &t), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_layers_find(&l, "coeff", &a), EXF_FOLD_BAD_ARGUMENT);
    l.reserved[3] = coeff;
    ck_assert_int_eq(exf_fold_layers_at(&l, 1, &t), EXF_FOLD_UNSUPPORTED);
    l.reserved[3] = NULL;
    l.size = 0;
    ck_assert_int_eq(exf_fold_layers_at(&l, 1, &t), EXF_FOLD_BAD_ARGUMENT);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "layers");
    tcase_add_test(c, an_exported_file_is_opened);
    tcase_add_loop_test(c, files_that_the_format_allows, 0, COUNT(good));
    tcase_add_loop_test(c, files_with_a_fault_are_refused, 0, COUNT(bad));
    tcase_add_test(c, reasons_are_plain_text);
    tcase_add_test(c, numbers_are_finite);
    tcase_add_test(c, files_that_end_early_are_refused);
    tcase_add_test(c, files_that_cannot_be_read);
    tcase_add_test(c, own_arrays_are_layers_too);
}
