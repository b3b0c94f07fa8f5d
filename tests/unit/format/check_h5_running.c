/* check_h5_running.c - the digest that is computed while a file is written is that of the file. */
#include "tests/support/fixtures_h5.h"

enum { LAYERS = 13, CELLS = 700 };

static exf_err e; /* of the last call */

static void layer_name(char name[16], int l)
{
    snprintf(name, 16, "%d", l);
}

static exf_h5_running *begin(int n)
{
    char name[LAYERS][16];
    const char *names[LAYERS];
    exf_h5_running *r = NULL;
    for (int l = 0; l < n; l++) {
        layer_name(name[l], l);
        names[l] = name[l];
    }
    ck_ok(exf_h5_running_new(&r, "layers", names, (size_t)n, &e), e);
    return r;
}

static void put(exf_h5 *h, const char *group, int l)
{
    double x[CELLS];
    char name[64];
    exf_tensor t = tensor(name, EXF_DT_F64, 2, 7, CELLS / 7, 0, x);
    for (int i = 0; i < CELLS; i++) x[i] = i + 1000 * l;
    snprintf(name, sizeof name, "/%s/%d/sums/dot", group, l);
    ck_ok(exf_h5_write_all(h, &t, 1, &e), e);
    t.rank = 1;
    t.shape[0] = 3;
    snprintf(name, sizeof name, "/%s/%d/count", group, l);
    ck_ok(exf_h5_write(h, &t, EXF_H5_PLAIN, &e), e);
}

/* Writes layers in this order, with objects and attributes on both sides of them. */
static void write_layers(const char *name, const int *order, int n, char given[EXF_SHA256_HEX])
{
    exf_h5_running *r = begin(n);
    exf_h5 *h = create(name);
    char layer[16];
    put(h, "before", 0);
    ck_ok(exf_h5_put_text(h, "/", "kind", "statistics", &e), e);
    for (int i = 0; i < n; i++) {
        put(h, "layers", order[i]);
        layer_name(layer, order[i]);
        ck_ok(exf_h5_running_add(r, h, layer, &e), e);
    }
    put(h, "provenance", 1);
    put(h, "sequences", 2);
    put(h, EXF_H5_ORIGIN, 3); /* which no digest covers */
    ck_ok(exf_h5_running_end(r, h, given, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    exf_h5_running_free(r);
}

static void ck_digest(const char *name, const char *given)
{
    char of_file[EXF_SHA256_HEX];
    exf_h5 *h;
    ck_ok(exf_h5_open(&h, exf_scratch(name), &e), e);
    ck_ok(exf_h5_digest(h, of_file, &e), e);
    exf_h5_close(h);
    ck_assert_str_eq(given, of_file);
}

/* Of 13 layers the digest has 0, 1, 10, 11, 12, 2, ..: most wait for another. */
START_TEST(layers_in_any_order_give_the_digest_of_the_file)
{
    static const int up[LAYERS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    static const int mixed[LAYERS] = {9, 12, 0, 3, 10, 1, 2, 11, 8, 5, 4, 7, 6};
    char first[EXF_SHA256_HEX], second[EXF_SHA256_HEX];
    write_layers("up.h5", up, LAYERS, first);
    ck_digest("up.h5", first);
    write_layers("mixed.h5", mixed, LAYERS, second);
    ck_digest("mixed.h5", second);
    ck_assert_str_eq(first, second);
    write_layers("one.h5", up, 1, first);
    ck_digest("one.h5", first);
    ck_assert_str_ne(first, second);
}
END_TEST

START_TEST(a_layer_is_added_once_and_none_is_left_out)
{
    char hex[EXF_SHA256_HEX];
    exf_h5_running *r = begin(3);
    exf_h5 *h = create("few.h5");
    put(h, "layers", 1);
    ck_ok(exf_h5_running_add(r, h, "1", &e), e);
    ck_fails(exf_h5_running_add(r, h, "1", &e), EXF_INTERNAL, e, "/layers/1 is added to the digest twice");
    ck_fails(exf_h5_running_add(r, h, "3", &e), EXF_INTERNAL, e, "/layers/3 is not among the members of the digest");
    ck_fails(exf_h5_running_end(r, h, hex, &e), EXF_INTERNAL, e, "/layers/0 is missing from the digest");
    exf_h5_running_free(r);
    exf_h5_running_free(NULL);
    exf_h5_close(h);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("h5_running");
    TCase *t = tcase_create("digest");
    tcase_add_test(t, layers_in_any_order_give_the_digest_of_the_file);
    tcase_add_test(t, a_layer_is_added_once_and_none_is_left_out);
    suite_add_tcase(s, t);
    return s;
}
