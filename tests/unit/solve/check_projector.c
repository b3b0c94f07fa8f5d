/* check_projector.c - what every entry of the table of projectors must be for the rest to follow
 * from it: spelled in variants and recipes, stored and found again under its own names, refused
 * by its name where tables lack it. */
#include "artifact/projector.h"
#include "artifact/tables.h"
#include "fold/fold_rewriter.h"
#include "tests/support/fixtures.h"

#include <stdio.h>
#include <string.h>

static exf_err e;

START_TEST(every_projector_is_found)
{
    const exf_projector *p, *same;
    for (size_t i = 0; (p = exf_projector_at(i)); i++) {
        ck_assert_ptr_eq(exf_projector_find(p->name), p);
        ck_assert(i == 0 || strcmp(exf_projector_at(i - 1)->name, p->name) < 0);
        if (p->layer) {
            ck_ok(exf_projector_require(p->name, &same, &e), e);
            ck_assert_ptr_eq(same, p);
        } else {
            ck_fails(exf_projector_require(p->name, &same, &e), EXF_USAGE, e, "calibrate.projectors \"joint\"");
        }
    }
    ck_assert_ptr_eq(exf_projector_find("pair"), &exf_projector_pair);
    ck_fails(exf_projector_require("diagnal", &p, &e), EXF_USAGE, e, "\"diagonal\"?");
}
END_TEST

START_TEST(people_see_each_once)
{
    size_t n = 0, all = 0;
    for (const exf_projector *p = exf_projector_after(0); p; p = exf_projector_after(p->place)) n++;
    while (exf_projector_at(all)) all++;
    ck_assert_msg(n == all, "%zu places for %zu projectors: two share one, or one has none", n, all);
    ck_assert_ptr_eq(exf_projector_after(0), &exf_projector_pair);
}
END_TEST

START_TEST(a_variant_can_spell_each)
{
    const exf_projector *p;
    for (size_t i = 0; (p = exf_projector_at(i)); i++) {
        char text[64];
        exf_variant v;
        snprintf(text, sizeof text, "P4:projector=%s%s", p->name, p->ranked ? "8" : "");
        ck_ok(exf_variant_parse(&v, text, &e), e);
        ck_assert_ptr_eq(v.prefill_projector, p);
        ck_assert_int_eq(v.prefill_lowrank, p->ranked ? 8 : 0);
        ck_assert_ptr_eq(v.decode_projector, &exf_projector_pair);
        ck_assert_int_eq(exf_variant_wants_vectors(&v), p->apply == EXF_APPLY_VECTORS);
        snprintf(text, sizeof text, "D4:projector=%s", p->name);
        exf_code rc = exf_variant_parse(&v, text, &e);
        ck_assert_int_eq(rc, p->apply == EXF_APPLY_VECTORS ? EXF_USAGE : EXF_OK);
        if (rc == EXF_OK) ck_assert_ptr_eq(v.decode_projector, p);
    }
}
END_TEST

/* Names of arrays are one space: a file's /vectors. */
START_TEST(what_is_stored_is_found_again)
{
    const exf_projector *p;
    for (size_t i = 0; (p = exf_projector_at(i)); i++)
        for (const exf_stored_array *a = p->stored; a && a->name; a++) {
            const exf_stored_array *found = exf_stored_array_find(a->name);
            exf_tables t = {.shape = {.n_experts = 3, .d_model = 4}, .n_layers = 2, .vectors = {.n_pairs = 2}};
            float *data, *again;
            ck_assert_msg(found && found->shape == a->shape, "%s: \"%s\" is stored by another, in another shape", p->name, a->name);
            ck_assert_str_ne(a->name, "pair");
            ck_assert_uint_le(strlen(a->name), 20);
            ck_ok(exf_vectors_add(&t, a->name, 2, &data, &e), e);
            ck_ok(exf_vectors_add(&t, a->name, 2, &again, &e), e);
            ck_assert_ptr_eq(data, again);
            exf_vectors_free(&t.vectors);
        }
    exf_tables none = {.n_layers = 1};
    float *data;
    ck_fails(exf_vectors_add(&none, "nothing", 0, &data, &e), EXF_INTERNAL, e, "\"nothing\"");
}
END_TEST

START_TEST(tables_without_vectors_are_refused)
{
    const exf_projector *p;
    exf_tables none = {.n_layers = 1};
    for (size_t i = 0; (p = exf_projector_at(i)); i++) {
        exf_projector_form form = {.scalar = 0};
        ck_assert_int_eq(p->form != NULL, p->apply == EXF_APPLY_VECTORS);
        ck_assert_int_eq(p->stored != NULL, p->apply == EXF_APPLY_VECTORS);
        if (p->form) ck_fails(p->form(&form, &none, 8, &e), EXF_USAGE, e, p->name);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, every_projector_is_found);
    tcase_add_test(t, people_see_each_once);
    tcase_add_test(t, a_variant_can_spell_each);
    tcase_add_test(t, what_is_stored_is_found_again);
    tcase_add_test(t, tables_without_vectors_are_refused);
}
