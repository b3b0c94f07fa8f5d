/* check_h5.c - HDF5 files: what is written reads back; equal writes give equal
 * bytes; the digest covers the payload and nothing else. */
#include "tests/support/fixtures_h5.h"

#include "base/text.h"

#include <signal.h>
#include <time.h>
#include <zlib.h>

static void file_path(char *out, size_t n, const exf_h5 *h, const char *rest)
{
    snprintf(out, n, "%s: %s", exf_h5_path(h), rest);
}

static exf_code digest_of(const char *name, char hex[EXF_SHA256_HEX], exf_err *e)
{
    exf_h5 *h;
    exf_code rc = exf_h5_open(&h, exf_scratch(name), e);
    if (rc != EXF_OK) return rc;
    rc = exf_h5_digest(h, hex, e);
    exf_h5_close(h);
    return rc;
}

static exf_code append_name(void *self, const char *name, exf_err *err)
{
    exf_text_appendf(self, "%s ", name);
    return exf_text_end(self, err);
}

static exf_code stop_at_once(void *self, const char *name, exf_err *err)
{
    ++*(int *)self;
    return exf_fail(err, EXF_STOPPED, "enough: %s", name);
}

/* ---- reading back ------------------------------------------------------------ */

START_TEST(every_dtype_and_shape_reads_back)
{
    static const exf_dtype all[] = {EXF_DT_U8, EXF_DT_I8, EXF_DT_I32, EXF_DT_I64, EXF_DT_U64, EXF_DT_F32, EXF_DT_F64};
    static const int64_t shapes[][4] = {{0, 0, 0, 0}, {1, 5, 0, 0}, {1, 0, 0, 0}, {2, 3, 7, 0},
                                        {2, 3, 0, 0}, {3, 2, 3, 5}, {3, 1, 1, 1}};
    unsigned char bytes[30 * 8], back[30 * 8];
    char name[64];
    exf_err e;
    exf_h5 *h = create("all.h5");
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 37 + 1);
    for (int pass = 0; pass < 2; pass++) {
        if (pass) h = reopen(h, "all.h5");
        for (size_t d = 0; d < 7; d++)
            for (size_t s = 0; s < 7; s++) {
                    snprintf(name, sizeof name, "/%s/s%zu", exf_dtype_name(all[d]), s);
                    exf_tensor t = tensor(name, all[d], (int)shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], bytes), is;
                    if (!pass) {
                        ck_ok(exf_h5_write(h, &t, &e), e);
                        continue;
                    }
                    ck_ok(exf_h5_describe(h, name, &is, &e), e);
                    ck_assert(is.dtype == t.dtype && is.rank == t.rank && is.data == NULL && strcmp(is.name, name) == 0);
                    for (int i = 0; i < t.rank; i++) ck_assert_int_eq(is.shape[i], t.shape[i]);
                    memset(back, 0, sizeof back);
                    ck_ok(exf_h5_read(h, &t, back, &e), e);
                    ck_assert_mem_eq(back, bytes, exf_tensor_bytes(&t));
                    for (size_t i = exf_tensor_bytes(&t); i < sizeof back; i++) ck_assert_uint_eq(back[i], 0);
                }
    }
    ck_assert_str_eq(exf_h5_path(h), exf_scratch("all.h5"));
    exf_h5_close(h);
    nothing_left(1);
}
END_TEST

START_TEST(attributes_read_back)
{
    exf_err e;
    int64_t i;
    char *text;
    float v[6] = {0};
    enum { LONG = 300000 };
    char *longest = malloc(LONG + 1);
    for (int k = 0; k < LONG; k++) longest[k] = (char)('!' + k % 90);
    longest[LONG] = 0;
    exf_h5 *h = create("attr.h5");
    ck_ok(exf_h5_group(h, "/layers/3", &e), e);
    put_floats(h, "/layers/3/dot", 2, 3, v);
    static const char *const objects[] = {"/", "/layers/3", "/layers/3/dot"};
    for (int o = 0; o < 3; o++) {
        ck_ok(exf_h5_put_text(h, objects[o], "empty", "", &e), e);
        ck_ok(exf_h5_put_text(h, objects[o], "word", "gr\xc3\xbc\xc3\x9f\n \xf0\x9f\x98\x80 ", &e), e);
        ck_ok(exf_h5_put_text(h, objects[o], "long", longest, &e), e);
        ck_ok(exf_h5_put_i64(h, objects[o], "least", INT64_MIN, &e), e);
    }
    ck_fails(exf_h5_put_i64(h, "/", "least", 1, &e), EXF_INTERNAL, e, "/");
    ck_fails(exf_h5_put_text(h, "/", "bad", "a\xff", &e), EXF_INTERNAL, e, "UTF-8 1");
    ck_fails(exf_h5_put_i64(h, "/none", "x", 1, &e), EXF_INTERNAL, e, "/none");
    h = reopen(h, "attr.h5");
    for (int o = 0; o < 3; o++) {
        ck_ok(exf_h5_get_text(h, objects[o], "empty", &text, &e), e);
        ck_assert_str_eq(text, "");
        exf_mem_free(text);
        ck_ok(exf_h5_get_text(h, objects[o], "word", &text, &e), e);
        ck_assert_str_eq(text, "gr\xc3\xbc\xc3\x9f\n \xf0\x9f\x98\x80 ");
        exf_mem_free(text);
        ck_ok(exf_h5_get_text(h, objects[o], "long", &text, &e), e);
        ck_assert(strcmp(text, longest) == 0);
        exf_mem_free(text);
        ck_ok(exf_h5_get_i64(h, objects[o], "least", &i, &e), e);
        ck_assert(i == INT64_MIN);
    }
    char want[700];
    int has;
    ck_ok(exf_h5_has_attr(h, "/layers/3", "word", &has, &e), e);
    ck_assert(has);
    ck_ok(exf_h5_has_attr(h, "/layers/3", "w", &has, &e), e);
    ck_assert(!has);
    ck_fails(exf_h5_has_attr(h, "/no", "word", &has, &e), EXF_FORMAT, e, "/no");
    file_path(want, sizeof want, h, "/layers/3 lacks the attribute sword");
    ck_fails(exf_h5_get_text(h, "/layers/3", "sword", &text, &e), EXF_FORMAT, e, want);
    ck_assert_ptr_null(text);
    file_path(want, sizeof want, h, "attribute word of / is text, expected I64");
    ck_fails(exf_h5_get_i64(h, "/", "word", &i, &e), EXF_FORMAT, e, want);
    ck_fails(exf_h5_get_text(h, "/", "least", &text, &e), EXF_FORMAT, e, "/ I64");
    ck_fails(exf_h5_put_i64(h, "/", "new", 1, &e), EXF_INTERNAL, e, "");
    exf_h5_close(h);
    free(longest);
    nothing_left(1);
}
END_TEST

START_TEST(listing_is_by_name)
{
    exf_err e;
    exf_text list = {0};
    char name[32];
    int calls = 0;
    float v[1] = {1};
    exf_h5 *h = create("list.h5");
    for (int i = 0; i < 40; i++) { /* beyond the 8 that HDF5 keeps inline */
        snprintf(name, sizeof name, "/g/m%02d", i * 27 % 40);
        put_floats(h, name, 1, 1, v);
        ck_ok(exf_h5_put_i64(h, "/g", name + 3, i, &e), e);
    }
    h = reopen(h, "list.h5");
    ck_ok(exf_h5_members(h, "/g", append_name, &list, &e), e);
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "m%02d ", i);
        ck_assert(strncmp(list.s + 4 * i, name, 4) == 0);
    }
    list.len = 0;
    ck_ok(exf_h5_attrs(h, "/g", append_name, &list, &e), e);
    ck_assert(strncmp(list.s, "m00 m01 ", 8) == 0 || strncmp(list.s, "00 01 ", 6) == 0);
    list.len = 0;
    ck_ok(exf_h5_members(h, "/", append_name, &list, &e), e);
    ck_assert_str_eq(list.s, "g ");
    ck_fails(exf_h5_members(h, "/g", stop_at_once, &calls, &e), EXF_STOPPED, e, "m00");
    ck_fails(exf_h5_attrs(h, "/g", stop_at_once, &calls, &e), EXF_STOPPED, e, "m00");
    ck_assert_int_eq(calls, 2);
    ck_fails(exf_h5_members(h, "/g/m00", append_name, &list, &e), EXF_FORMAT, e, "/g/m00");
    ck_fails(exf_h5_members(h, "/h", append_name, &list, &e), EXF_FORMAT, e, "/h");
    static const struct { const char *path; int found; } paths[] = {
        {"/", 1}, {"/g/", 1}, {"/g/m39", 1}, {"/g/m40", 0}, {"/x/m39", 0}, {"/g/m39/y", 0}, {"/g/m39/y/z", 0}};
    for (int i = 0; i < COUNT(paths); i++) {
        int found = 2;
        ck_ok(exf_h5_exists(h, paths[i].path, &found, &e), e);
        ck_assert_msg(found == paths[i].found, "%s", paths[i].path);
    }
    exf_text_free(&list);
    exf_h5_close(h);
    nothing_left(1);
}
END_TEST

/* Rows in any order and pieces read back, with the CRC-32 of the whole. */
START_TEST(rows_in_any_order)
{
    enum { ROWS = 1000, WIDE = 50 };
    static const int64_t piece[][2] = {{900, 100}, {0, 327}, {327, 2}, {329, 1}, {500, 390}}; /* 330 to 500 and 890 to 900 stay 0 */
    static float v[ROWS * WIDE], back[ROWS * WIDE];
    char want[64], *text;
    uint32_t crc;
    exf_err e;
    exf_h5 *h = create("rows.h5");
    exf_tensor t = tensor("/d/rows", EXF_DT_F32, 2, ROWS, WIDE, 0, NULL);
    ck_ok(exf_h5_define(h, &t, &e), e);
    put_floats(h, "/other", 10, WIDE, v);
    for (int i = 0; i < COUNT(piece); i++) {
        for (int64_t k = piece[i][0] * WIDE; k < (piece[i][0] + piece[i][1]) * WIDE; k++) v[k] = (float)k / 7;
        ck_ok(exf_h5_write_rows(h, "/d/rows", piece[i][0], piece[i][1], v + piece[i][0] * WIDE, &e), e);
    }
    ck_ok(exf_h5_write_rows(h, "/d/rows", ROWS, 0, v, &e), e);
    ck_fails(exf_h5_write_rows(h, "/d/rows", 999, 2, v, &e), EXF_INTERNAL, e, "/d/rows 1000 2 999");
    ck_fails(exf_h5_write_rows(h, "/other", 0, 1, v, &e), EXF_INTERNAL, e, "/other");
    ck_fails(exf_h5_read_rows(h, "/d/rows", EXF_DT_F32, 0, 1, back, &e), EXF_INTERNAL, e, "rows.h5");
    ck_ok(exf_h5_checksum(h, "/d/rows", &crc, &e), e);
    ck_assert_uint_eq(crc, crc32(0, (unsigned char *)v, sizeof v));
    h = reopen(h, "rows.h5");
    snprintf(want, sizeof want, "%08x", (unsigned)crc);
    ck_ok(exf_h5_get_text(h, "/d/rows", EXF_H5_CHECKSUM, &text, &e), e);
    ck_assert_str_eq(text, want);
    exf_mem_free(text);
    ck_ok(exf_h5_read(h, &t, back, &e), e);
    ck_assert(memcmp(back, v, sizeof v) == 0);
    exf_h5_close(h);
    nothing_left(1);
}
END_TEST

/* Rows are read in order, as often as one likes; the last of them tells of damage in any. */
START_TEST(rows_are_read_in_order)
{
    enum { ROWS = 1000, WIDE = 7 };
    static float v[ROWS * WIDE], back[ROWS * WIDE];
    exf_err e;
    exf_h5 *h = create("rows.h5");
    for (int i = 0; i < ROWS * WIDE; i++) v[i] = (float)i;
    put_floats(h, "/rows", ROWS, WIDE, v);
    exf_tensor one = tensor("/one", EXF_DT_F32, 0, 0, 0, 0, v);
    ck_ok(exf_h5_write(h, &one, &e), e);
    h = reopen(h, "rows.h5");
    for (int sweep = 0; sweep < 3; sweep++) {
        memset(back, 0, sizeof back);
        for (int r = 0, n = 1; r < ROWS / (sweep == 1 ? 2 : 1); r += n, n = r + n * 2 > ROWS ? ROWS - r : n * 2) /* 1: given up */
            ck_ok(exf_h5_read_rows(h, "/rows", EXF_DT_F32, r, n, back + r * WIDE, &e), e);
        if (sweep != 1) ck_assert(memcmp(back, v, sizeof v) == 0);
    }
    ck_ok(exf_h5_read_rows(h, "/rows", EXF_DT_F32, 0, 5, back, &e), e);
    ck_fails(exf_h5_read_rows(h, "/rows", EXF_DT_F32, 6, 1, back, &e), EXF_INTERNAL, e, "6 4");
    ck_fails(exf_h5_read_rows(h, "/rows", EXF_DT_F32, 0, ROWS + 1, back, &e), EXF_FORMAT, e,
             "/rows 1000 1001 0");
    ck_fails(exf_h5_read_rows(h, "/rows", EXF_DT_F32, INT64_MAX, INT64_MAX, back, &e), EXF_FORMAT, e, "1000");
    ck_fails(exf_h5_read_rows(h, "/rows", EXF_DT_F32, -1, 1, back, &e), EXF_FORMAT, e, "1000");
    ck_fails(exf_h5_read_rows(h, "/rows", EXF_DT_F64, 0, 1, back, &e), EXF_FORMAT, e, "/rows F32 F64");
    ck_fails(exf_h5_read_rows(h, "/one", EXF_DT_F32, 0, 1, back, &e), EXF_FORMAT, e, "/one");
    exf_h5_close(h);
    hid_t f = H5Fopen(exf_scratch("rows.h5"), H5F_ACC_RDWR, H5P_DEFAULT), d = H5Dopen2(f, "/rows", H5P_DEFAULT);
    v[400 * WIDE + 3] = 1e-30f;
    ck_assert_int_ge(H5Dwrite(d, H5T_IEEE_F32LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, v), 0);
    H5Dclose(d);
    H5Fclose(f);
    ck_ok(exf_h5_open(&h, exf_scratch("rows.h5"), &e), e);
    ck_ok(exf_h5_read_rows(h, "/rows", EXF_DT_F32, 0, ROWS - 1, back, &e), e);
    ck_fails(exf_h5_read_rows(h, "/rows", EXF_DT_F32, ROWS - 1, 1, back, &e), EXF_FORMAT, e, "/rows 28000");
    exf_tensor t = tensor("/rows", EXF_DT_F32, 2, ROWS, WIDE, 0, NULL);
    ck_fails(exf_h5_read(h, &t, back, &e), EXF_FORMAT, e, "/rows");
    char hex[EXF_SHA256_HEX];
    ck_fails(exf_h5_digest(h, hex, &e), EXF_FORMAT, e, "/rows");
    exf_h5_close(h);
    nothing_left(1);
}
END_TEST

/* More groups than are kept open, one within another, with long names and short, come in turn. */
START_TEST(groups_come_in_turn)
{
    enum { GROUPS = 9, TURNS = 5 };
    exf_err e;
    char group[GROUPS][400], path[4000], hex[EXF_SHA256_HEX], want[EXF_SHA256_HEX];
    float v[1], back[1];
    exf_h5 *h = create("turns.h5");
    for (int g = 0; g < GROUPS; g++) {
        int width = g < 6 ? 1 : 60; /* the last ones' paths are long */
        snprintf(group[g], sizeof group[g], "%s/g%0*d", g % 3 ? group[g - 1] : "", width, g);
    }
    for (int turn = 0; turn < TURNS; turn++)
        for (int g = 0; g <= GROUPS; g++) { /* the last is the root */
            snprintf(path, sizeof path, "%s/d%d", g < GROUPS ? group[g] : "", turn);
            v[0] = (float)(10 * g + turn);
            put_floats(h, path, 1, 1, v);
            ck_ok(exf_h5_put_i64(h, g % 2 && g < GROUPS ? group[g] : path, (char[]){(char)('a' + turn), 0}, g, &e), e);
        }
    exf_tensor again = tensor(path, EXF_DT_F32, 2, 1, 1, 0, v);
    ck_fails(exf_h5_write(h, &again, &e), EXF_INTERNAL, e, "turns.h5 /d4");
    ck_ok(exf_h5_digest(h, hex, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    ck_ok(digest_of("turns.h5", want, &e), e);
    ck_assert_str_eq(hex, want);
    ck_ok(exf_h5_open(&h, exf_scratch("turns.h5"), &e), e);
    for (int turn = 0; turn < TURNS; turn++)
        for (int g = 0; g <= GROUPS; g++) {
            snprintf(path, sizeof path, "%s/d%d", g < GROUPS ? group[g] : "", turn);
            exf_tensor t = tensor(path, EXF_DT_F32, 2, 1, 1, 0, NULL);
            ck_ok(exf_h5_read(h, &t, back, &e), e);
            ck_assert(back[0] == (float)(10 * g + turn));
        }
    exf_h5_close(h);
    nothing_left(1);
}
END_TEST

/* ---- files that a later run goes on with ------------------------------------------ */

enum { LAYERS = 3, ROWS_EACH = 40, COLUMNS = 1000 };

static exf_tensor layer_tensor(char path[32], int layer)
{
    snprintf(path, 32, "/layers/%d", layer);
    return tensor(path, EXF_DT_F32, 2, ROWS_EACH, COLUMNS, 0, NULL);
}

static void put_layer(exf_h5 *h, int layer, int rows)
{
    static float v[ROWS_EACH * COLUMNS];
    char path[32];
    exf_err e;
    exf_tensor t = layer_tensor(path, layer);
    for (int i = 0; i < ROWS_EACH * COLUMNS; i++) v[i] = (float)(layer * 7919 + i);
    ck_ok(exf_h5_write_rows(h, t.name, 0, rows, v, &e), e);
}

static exf_h5 *start_unfinished(const char *target, const char *unfinished)
{
    char path[32];
    exf_err e;
    exf_h5 *h;
    ck_ok(exf_h5_create(&h, target, 0, unfinished, &e), e);
    ck_ok(exf_h5_put_text(h, "/", "k", "v", &e), e);
    for (int i = 0; i < LAYERS; i++) {
        exf_tensor t = layer_tensor(path, i);
        ck_ok(exf_h5_define(h, &t, &e), e);
    }
    ck_ok(exf_h5_end_definitions(h, &e), e);
    return h;
}

static void end_unfinished(exf_h5 *h)
{
    exf_err e;
    ck_ok(exf_h5_put_text(h, "/", "late", "fact", &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
}

/* A run is killed, the later the more it wrote: in its rows, in changes to the structure, or in half of its commit. */
START_TEST(a_later_run_goes_on)
{
    char target[600], unfinished[600], whole[600], path[32], *a, *b;
    size_t na, nb;
    exf_err e;
    snprintf(target, sizeof target, "%s", exf_scratch("x.h5"));
    snprintf(unfinished, sizeof unfinished, "%s", exf_scratch(".x.h5.unfinished"));
    snprintf(whole, sizeof whole, "%s", exf_scratch("whole.h5"));
    exf_h5 *h = start_unfinished(whole, exf_scratch(".whole.h5.unfinished"));
    for (int i = 0; i < LAYERS; i++) put_layer(h, i, ROWS_EACH);
    end_unfinished(h);
    for (int killed = 0; killed < 4; killed++) {
        unlink(target);
        exf_h5_structure s = {.n = 0};
        uint32_t crc[LAYERS];
        h = start_unfinished(target, unfinished);
        put_layer(h, 0, ROWS_EACH);
        ck_ok(exf_h5_keep_structure(h, &s, &e), e);
        ck_ok(exf_h5_checksum(h, "/layers/0", &crc[0], &e), e);
        put_layer(h, 1, 10); /* not of the point */
        if (killed == 1) ck_ok(exf_h5_put_text(h, "/", "late", "fact", &e), e);
        exf_h5_close(h); /* as far as the file is concerned */
        if (killed == 2) { /* left open for writing, as libhdf5 notes it in the superblock; cut at its end later */
            ck_ok(exf_file_slurp(unfinished, 1 << 26, &a, &na, &e), e);
            memset(a, 0xee, 60);
            exf_write_file(unfinished, a, na);
            exf_mem_free(a);
        }
        if (killed == 3) ck_assert_int_eq(truncate(unfinished, (off_t)(s.extent[2 * s.n - 2] + s.extent[2 * s.n - 1] + 5000)), 0);
        ck_ok(exf_h5_continue_at(&h, target, 0, unfinished, &s, &e), e);
        for (int i = 0; i < LAYERS; i++) {
            exf_tensor t = layer_tensor(path, i);
            ck_ok(exf_h5_take(h, &t, i ? NULL : crc, &e), e);
        }
        put_layer(h, 1, ROWS_EACH);
        if (killed == 3) { /* a layer that is to be written anew is missing */
            ck_fails(exf_h5_commit(h, &e), EXF_INTERNAL, e, "/layers/2 0 40");
            ck_ok(exf_h5_continue_at(&h, target, 0, unfinished, &s, &e), e);
            for (int i = 0; i < LAYERS; i++) {
                exf_tensor t = layer_tensor(path, i);
                ck_ok(exf_h5_take(h, &t, i ? NULL : crc, &e), e);
            }
            put_layer(h, 1, ROWS_EACH);
        }
        put_layer(h, 2, ROWS_EACH);
        end_unfinished(h);
        ck_ok(exf_file_slurp(target, 1 << 26, &a, &na, &e), e);
        ck_ok(exf_file_slurp(whole, 1 << 26, &b, &nb, &e), e);
        ck_assert_uint_eq(na, nb);
        ck_assert(memcmp(a, b, na) == 0);
        exf_mem_free(a);
        exf_mem_free(b);
        ck_assert_int_eq(unlink(target), 0);
        exf_h5_structure_free(&s);
    }
    nothing_left(1);
}
END_TEST

START_TEST(rows_of_a_stopped_run_are_compared)
{
    char target[600], unfinished[600], path[32], *bytes;
    size_t n;
    uint32_t crc;
    exf_err e;
    exf_h5_structure s = {.n = 0};
    snprintf(target, sizeof target, "%s", exf_scratch("x.h5"));
    snprintf(unfinished, sizeof unfinished, "%s", exf_scratch(".x.h5.unfinished"));
    exf_h5 *h = start_unfinished(target, unfinished);
    put_layer(h, 0, ROWS_EACH);
    ck_ok(exf_h5_keep_structure(h, &s, &e), e);
    ck_ok(exf_h5_checksum(h, "/layers/0", &crc, &e), e);
    exf_h5_close(h);
    ck_ok(exf_file_slurp(unfinished, 1 << 26, &bytes, &n, &e), e);
    exf_tensor t = layer_tensor(path, 0);
    bytes[s.extent[0] + s.extent[1] + 777] ^= 4; /* an element of the first dataset */
    exf_write_file(unfinished, bytes, n);
    ck_ok(exf_h5_continue_at(&h, target, 0, unfinished, &s, &e), e);
    ck_fails(exf_h5_take(h, &t, &crc, &e), EXF_FORMAT, e, "/layers/0");
    exf_h5_close(h);
    exf_write_file(unfinished, bytes, n / 2);
    ck_fails(exf_h5_continue_at(&h, target, 0, unfinished, &s, &e), EXF_FORMAT, e, "x.h5.unfinished 241024");
    ck_assert_ptr_null(h);
    exf_mem_free(bytes);
    exf_h5_structure_free(&s);
    unlink(unfinished);
    nothing_left(0);
}
END_TEST

START_TEST(misfits_are_named)
{
    exf_err e;
    char want[700];
    float v[6] = {0};
    double untouched[6] = {7};
    exf_h5 *h = create("misfit.h5");
    put_floats(h, "/coeff", 2, 3, v);
    exf_tensor t = tensor("/coeff", EXF_DT_F32, 2, 2, 3, 0, v), again = t;
    ck_fails(exf_h5_write(h, &t, &e), EXF_INTERNAL, e, "/coeff");
    ck_fails(exf_h5_group(h, "/coeff/x", &e), EXF_INTERNAL, e, "/coeff/x");
    ck_fails(exf_h5_group(h, "/coeff", &e), EXF_INTERNAL, e, "/coeff");
    ck_fails(exf_h5_group(h, "g", &e), EXF_INTERNAL, e, "\"g\"");
    again.name = "/b", again.dtype = EXF_DT_BF16;
    ck_fails(exf_h5_write(h, &again, &e), EXF_INTERNAL, e, "/b BF16");
    again = tensor("/b", EXF_DT_F32, 3, INT64_MAX / 2, 0, INT64_MAX / 2, v);
    ck_fails(exf_h5_define(h, &again, &e), EXF_INTERNAL, e, "/b 0");
    again = tensor("/b", EXF_DT_F32, 2, 2, -3, 0, v);
    ck_fails(exf_h5_define(h, &again, &e), EXF_INTERNAL, e, "/b 1 -3");
    again = tensor("/", EXF_DT_F32, 1, 2, 0, 0, v);
    ck_fails(exf_h5_write(h, &again, &e), EXF_INTERNAL, e, "misfit.h5 /");
    ck_ok(exf_h5_group(h, "/deep/er", &e), e);
    ck_ok(exf_h5_group(h, "/deep/er", &e), e);
    ck_ok(exf_h5_group(h, "/", &e), e);
    h = reopen(h, "misfit.h5");
    exf_tensor wrong[] = {tensor("/coeff", EXF_DT_F64, 2, 2, 3, 0, 0), tensor("/coeff", EXF_DT_F32, 2, 3, 2, 0, 0),
                          tensor("/coeff", EXF_DT_F32, 1, 6, 0, 0, 0)};
    static const char *const say[] = {"F64 [2, 3]", "F32 [3, 2]", "F32 [6]"};
    for (int i = 0; i < 3; i++) {
        snprintf(want, sizeof want, "%s: /coeff is F32 [2, 3], expected %s", exf_h5_path(h), say[i]);
        ck_fails(exf_h5_read(h, &wrong[i], untouched, &e), EXF_FORMAT, e, want);
    }
    ck_assert(untouched[0] == 7);
    t.name = "/none";
    ck_fails(exf_h5_read(h, &t, v, &e), EXF_FORMAT, e, "/none");
    t.name = "/deep";
    ck_fails(exf_h5_read(h, &t, v, &e), EXF_FORMAT, e, "/deep");
    ck_fails(exf_h5_group(h, "/new", &e), EXF_INTERNAL, e, "misfit.h5");
    exf_h5_close(h);
    nothing_left(1);
}
END_TEST

/* ---- equal bytes, equal digests ------------------------------------------------- */

START_TEST(equal_writes_give_equal_bytes)
{
    exf_err e;
    char *a, *b;
    size_t len_a, len_b;
    write_sample("one.h5", 0);
    nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 100000000}, NULL);
    void *stir = malloc(100000); /* and the heap is another one */
    memset(stir, 0xa5, 100000);
    free(stir);
    write_sample("two.h5", 0);
    ck_ok(exf_file_slurp(exf_scratch("one.h5"), 1 << 26, &a, &len_a, &e), e);
    ck_ok(exf_file_slurp(exf_scratch("two.h5"), 1 << 26, &b, &len_b, &e), e);
    ck_assert_uint_eq(len_a, len_b);
    ck_assert(memcmp(a, b, len_a) == 0);
    exf_mem_free(a);
    exf_mem_free(b);
    nothing_left(2);
}
END_TEST

START_TEST(digest_sees_the_payload_and_nothing_else)
{
    exf_err e;
    char hex[9][EXF_SHA256_HEX];
    write_sample("a.h5", 0);
    ck_ok(digest_of("a.h5", hex[0], &e), e);
    for (int v = 1; v < 9; v++) {
        write_sample("c.h5", v);
        ck_ok(digest_of("c.h5", hex[v], &e), e);
        for (int u = 0; u < v; u++) ck_assert_str_ne(hex[v], hex[u]);
    }
    nothing_left(2);
}
END_TEST

/* The digest's specification, once more by hand, for one small file. */
START_TEST(digest_is_as_specified)
{
    exf_err e;
    static const unsigned char f32[8] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0}; /* 1, -2 */
    float v[2] = {1, -2};
    char hex[EXF_SHA256_HEX], want[EXF_SHA256_HEX];
    exf_h5 *h = create("spec.h5");
    put_floats(h, "/g/d", 1, 2, v);
    ck_ok(exf_h5_put_i64(h, "/g", "n", -3, &e), e);
    ck_ok(exf_h5_put_text(h, "/g", "m", "t", &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    ck_ok(digest_of("spec.h5", hex, &e), e);
    exf_hash *s;
    ck_ok(exf_hash_new(&s, &e), e);
    static const char *const words[] = {"object", "/", "group", "object", "/g", "group", "attribute", "m", "text", "t",
                                        "attribute", "n", "I64"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) ck_ok(exf_hash_add_text(s, words[i], &e), e);
    ck_ok(exf_hash_add_u64(s, (uint64_t)-3, &e), e);
    static const char *const more[] = {"object", "/g/d", "dataset", "elements", "F32"};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) ck_ok(exf_hash_add_text(s, more[i], &e), e);
    for (uint64_t i = 0; i < 3; i++) ck_ok(exf_hash_add_u64(s, (uint64_t[]){2, 1, 2}[i], &e), e);
    ck_ok(exf_hash_add(s, f32, sizeof f32, &e), e);
    ck_ok(exf_hash_end(s, want, &e), e);
    ck_assert_str_eq(hex, want);
    nothing_left(1);
}
END_TEST

/* Whatever is hashed while the file is written, and a group whose name begins with another's, the digest is the finished file's. */
START_TEST(a_digest_that_begins_early_is_the_files)
{
    exf_err e;
    static const char *const data[] = {"/a/d", "/layers/0/d", "/layers/1/d", "/layers/1/e", "/layers/10/d", "/layers/2/d",
                                       "/layers-b/d", "/z/d"};
    static const char *const through[] = {"/layers/0", "/layers/1", "/layers/10", "/layers/2"};
    char hex[EXF_SHA256_HEX], want[EXF_SHA256_HEX];
    for (size_t steps = 0; steps <= 4; steps++) {
        exf_h5 *h = create("early.h5");
        for (size_t i = 0; i < sizeof data / sizeof *data; i++) put_floats(h, data[i], 1, 1, (float[]){(float)i});
        ck_ok(exf_h5_put_i64(h, "/layers/1", "n", 1, &e), e);
        for (size_t i = 0; i < steps; i++) ck_ok(exf_h5_digest_through(h, through[i], &e), e);
        ck_ok(exf_h5_put_i64(h, "/z", "late", 1, &e), e);
        ck_ok(exf_h5_digest(h, hex, &e), e);
        ck_ok(exf_h5_commit(h, &e), e);
        ck_ok(digest_of("early.h5", want, &e), e);
        ck_assert_str_eq(hex, want);
    }
    nothing_left(1);
}
END_TEST

/* The digest of a file that is being written is known without libhdf5: in whatever order its objects and attributes are made, and
 * as often as it is asked for. */
START_TEST(a_digest_is_the_same_before_and_after)
{
    static const char *const data[] = {"/b/z", "/a.b", "/a/b/c", "/a-b", "/a/a", "/\xc3\xa9/x", "/origin/d", "/originals/d", "/ab"};
    exf_err e;
    char hex[2][EXF_SHA256_HEX], want[EXF_SHA256_HEX];
    float v[6] = {1, 2, 3, 4, 5, 6};
    exf_h5 *h = create("both.h5");
    ck_ok(exf_h5_put_text(h, "/", "zeta", "", &e), e);
    for (size_t i = 0; i < sizeof data / sizeof *data; i++) put_floats(h, data[i], 2, 3, v);
    exf_tensor rows = tensor("/a/rows", EXF_DT_F32, 2, 2, 3, 0, NULL), one = tensor("/one", EXF_DT_I64, 0, 0, 0, 0, &(int64_t){7}),
               none = tensor("/none", EXF_DT_F64, 1, 0, 0, 0, NULL);
    ck_ok(exf_h5_define(h, &rows, &e), e);
    ck_ok(exf_h5_write(h, &one, &e), e);
    ck_ok(exf_h5_write(h, &none, &e), e);
    ck_ok(exf_h5_group(h, "/empty/group", &e), e);
    ck_ok(exf_h5_put_i64(h, "/a.b", "of a dataset", INT64_MIN, &e), e);
    ck_ok(exf_h5_put_text(h, "/", "alpha", "\xc3\xa9", &e), e);
    ck_ok(exf_h5_put_i64(h, "/", EXF_H5_CONTAINER, 9, &e), e);
    ck_ok(exf_h5_put_text(h, "/origin", "of no digest", "x", &e), e);
    ck_ok(exf_h5_put_text(h, "/empty", EXF_H5_CONTAINER, "of the root alone", &e), e);
    ck_ok(exf_h5_write_rows(h, "/a/rows", 1, 1, v, &e), e);
    for (int i = 0; i < 2; i++) ck_ok(exf_h5_digest(h, hex[i], &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    ck_ok(digest_of("both.h5", want, &e), e);
    ck_assert_str_eq(hex[0], want);
    ck_assert_str_eq(hex[1], want);
    nothing_left(1);
}
END_TEST

/* What comes after the digest came by its place would be in the file and in no digest. */
START_TEST(what_is_hashed_takes_no_more)
{
    exf_err e;
    float v[1] = {1};
    exf_h5 *h = create("late.h5");
    exf_tensor t = tensor("/layers/0/e", EXF_DT_F32, 1, 1, 0, 0, v);
    put_floats(h, "/layers/0/d", 1, 1, v);
    put_floats(h, "/layers/1/d", 1, 1, v);
    ck_ok(exf_h5_digest_through(h, "/layers/0", &e), e);
    ck_fails(exf_h5_write(h, &t, &e), EXF_INTERNAL, e, "late.h5 /layers/0/e digest");
    ck_fails(exf_h5_put_i64(h, "/layers/0", "n", 1, &e), EXF_INTERNAL, e, "late.h5 /layers/0 digest");
    ck_fails(exf_h5_group(h, "/a", &e), EXF_INTERNAL, e, "late.h5 /a digest");
    ck_ok(exf_h5_put_i64(h, "/layers/1", "n", 1, &e), e);
    exf_h5_close(h); /* while it may be hashed */
    h = create("late.h5");
    put_floats(h, "/d", 1, 1, v);
    ck_ok(exf_h5_digest_through(h, "/d", &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    ck_ok(exf_h5_open(&h, exf_scratch("late.h5"), &e), e);
    ck_fails(exf_h5_digest_through(h, "/d", &e), EXF_INTERNAL, e, "late.h5");
    exf_h5_close(h);
    nothing_left(1);
}
END_TEST

/* A digest that would not be found in the file that is read is not given to the one that is written. */
START_TEST(groups_too_deep_have_no_digest)
{
    exf_err e;
    char path[128] = "", hex[EXF_SHA256_HEX];
    float v[1] = {1};
    exf_h5 *h = create("deep.h5");
    for (int i = 0; i < 31; i++) strcat(path, "/g");
    strcat(path, "/d");
    put_floats(h, path, 1, 1, v);
    ck_ok(exf_h5_digest(h, hex, &e), e);
    path[strlen(path) - 1] = 'g';
    strcat(path, "/d");
    put_floats(h, path, 1, 1, v);
    ck_fails(exf_h5_digest(h, hex, &e), EXF_FORMAT, e, "deep.h5 32");
    ck_ok(exf_h5_commit(h, &e), e);
    ck_fails(digest_of("deep.h5", hex, &e), EXF_FORMAT, e, "deep.h5 32");
    nothing_left(1);
}
END_TEST

/* Fills array i of 40. */
static void fill_array(void *self, size_t i)
{
    for (int k = 0; k < 3; k++) ((float *)self)[3 * i + (size_t)k] = (float)(10 * i) + (float)k;
}

/* Elements may be made by the thread that writes them, each once. */
START_TEST(elements_are_made_as_they_are_written)
{
    enum { ARRAYS = 40 };
    exf_err e;
    float v[ARRAYS][3] = {{0}}, back[3], want[ARRAYS][3];
    char name[ARRAYS][16];
    exf_tensor t[ARRAYS];
    exf_h5 *h = create("filled.h5");
    for (size_t i = 0; i < ARRAYS; i++) {
        snprintf(name[i], sizeof name[i], "/%s%zu", i % 2 ? "g/" : "", i);
        t[i] = tensor(name[i], EXF_DT_F32, 1, 3, 0, 0, v[i]);
        fill_array(want, i);
    }
    ck_ok(exf_h5_write_all(h, t, ARRAYS, fill_array, v, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    ck_ok(exf_h5_open(&h, exf_scratch("filled.h5"), &e), e);
    for (int i = 0; i < ARRAYS; i++) {
        ck_ok(exf_h5_read(h, &t[i], back, &e), e);
        ck_assert(memcmp(back, want[i], sizeof back) == 0);
    }
    exf_h5_close(h);
    nothing_left(1);
}
END_TEST

/* What a stopped run has still to note is small. */
START_TEST(a_stop_lets_small_datasets_be_written)
{
    exf_err e;
    float v[2][3] = {{1, 2, 3}, {4, 5, 6}}, back[3];
    const exf_tensor t[2] = {{.name = "/a", .dtype = EXF_DT_F32, .rank = 1, .shape = {3}, .data = v[0]},
                             {.name = "/g/b", .dtype = EXF_DT_F32, .rank = 1, .shape = {3}, .data = v[1]}};
    exf_h5 *h = create("stopped.h5");
    exf_stop_request(SIGTERM);
    exf_code rc = exf_h5_write_all(h, t, 2, NULL, NULL, &e);
    exf_stop_request(0);
    ck_ok(rc, e);
    ck_ok(exf_h5_commit(h, &e), e);
    ck_ok(exf_h5_open(&h, exf_scratch("stopped.h5"), &e), e);
    for (int i = 0; i < 2; i++) {
        ck_ok(exf_h5_read(h, &t[i], back, &e), e);
        ck_assert(memcmp(back, v[i], sizeof back) == 0);
    }
    exf_h5_close(h);
    nothing_left(1);
}
END_TEST

/* A large dataset is hashed in pieces; what is written and read so is all there, and its checksum that of all bytes. */
START_TEST(a_large_dataset_is_done_in_pieces)
{
    enum { N = EXF_H5_LARGE + 5, PIECE = 4 << 20 };
    exf_err e;
    char hex[EXF_SHA256_HEX], want[EXF_SHA256_HEX], piece[EXF_SHA256_HEX], early[EXF_SHA256_HEX];
    unsigned char *v = malloc(N), *back = malloc(N);
    exf_hash *s;
    for (int i = 0; i < N; i++) v[i] = (unsigned char)(i ^ i >> 13);
    exf_tensor t = {.name = "/v", .dtype = EXF_DT_U8, .rank = 1, .shape = {N}, .data = v};
    exf_h5 *h = create("large.h5");
    ck_ok(exf_h5_write(h, &t, &e), e);
    ck_ok(exf_h5_digest(h, early, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    ck_ok(exf_h5_open(&h, exf_scratch("large.h5"), &e), e);
    ck_ok(exf_h5_read(h, &t, back, &e), e);
    ck_assert(memcmp(v, back, N) == 0);
    ck_ok(exf_h5_digest(h, hex, &e), e);
    exf_h5_close(h);
    ck_ok(exf_hash_new(&s, &e), e);
    static const char *const words[] = {"object", "/", "group", "object", "/v", "dataset", "elements", "U8"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) ck_ok(exf_hash_add_text(s, words[i], &e), e);
    ck_ok(exf_hash_add_u64(s, 1, &e), e);
    ck_ok(exf_hash_add_u64(s, N, &e), e);
    ck_ok(exf_hash_add_text(s, "pieces", &e), e);
    ck_ok(exf_hash_add_u64(s, PIECE, &e), e);
    for (int at = 0; at < N; at += PIECE) {
        ck_ok(exf_hash_bytes(v + at, (size_t)(N - at < PIECE ? N - at : PIECE), piece, &e), e);
        ck_ok(exf_hash_add_text(s, piece, &e), e);
    }
    ck_ok(exf_hash_end(s, want, &e), e);
    ck_assert_str_eq(hex, want);
    ck_assert_str_eq(early, want);
    free(v);
    free(back);
    nothing_left(1);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "reading back");
    tcase_add_test(t, every_dtype_and_shape_reads_back);
    tcase_add_test(t, attributes_read_back);
    tcase_add_test(t, listing_is_by_name);
    tcase_add_test(t, rows_in_any_order);
    tcase_add_test(t, groups_come_in_turn);
    tcase_add_test(t, elements_are_made_as_they_are_written);
    tcase_add_test(t, a_stop_lets_small_datasets_be_written);
    tcase_add_test(t, misfits_are_named);
    tcase_add_test(t, rows_are_read_in_order);
    tcase_add_test(t, a_later_run_goes_on);
    tcase_add_test(t, rows_of_a_stopped_run_are_compared);
    t = exf_case(s, "equal bytes");
    tcase_add_test(t, equal_writes_give_equal_bytes);
    tcase_add_test(t, digest_sees_the_payload_and_nothing_else);
    tcase_add_test(t, digest_is_as_specified);
    tcase_add_test(t, a_digest_that_begins_early_is_the_files);
    tcase_add_test(t, a_digest_is_the_same_before_and_after);
    tcase_add_test(t, what_is_hashed_takes_no_more);
    tcase_add_test(t, groups_too_deep_have_no_digest);
    tcase_add_test(t, a_large_dataset_is_done_in_pieces);
}
