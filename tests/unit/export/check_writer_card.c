/* check_writer_card.c - the target card: README.md, and its snippets, which are
 * those of tests/interop and of docs/serving.md. */
#include "tests/support/export_fixtures.h"

#include "export/writer_internal.h"

static exf_err e; /* of the last call */

enum { TARGETS = 4 };
static const char *const names[TARGETS] = {"safetensors", "exfold-qwen3", "npy", "card"};
static const char *const datasets[] = {"org/it's: data", "org/more"};

static const char validation[] = "| variant | PPL |\n|---|---|\n| P4 | 3.4 |"; /* without a line's end */

static exf_export sample_export(const exf_tables *t)
{
    static const exf_writer *targets[TARGETS];
    for (int i = 0; i < TARGETS; i++) targets[i] = exf_writer_find(names[i]);
    return (exf_export){.tables = t, .targets = targets, .n_targets = TARGETS};
}

static char *card_of(const exf_export *x)
{
    char *text = NULL;
    size_t n;
    ck_ok(write_export("card", x, "README.md", 1, &e), e);
    ck_ok(exf_file_slurp(exf_scratch("README.md"), 1 << 20, &text, &n, &e), e);
    return text;
}

static void ck_says(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "the card lacks \"%s\":\n%s", part, text);
}

START_TEST(what_was_given_stands_in_the_front_matter)
{
    exf_tables t;
    ck_ok(sample_tables(&t, 0, &e), e);
    exf_export x = sample_export(&t);
    x.base_model = "org/model|x";
    x.revision = "abc123";
    x.datasets = datasets;
    x.n_datasets = 2;
    x.has_recipe = 1;
    char *card = card_of(&x);
    ck_says(card, "---\nbase_model: 'org/model|x'\nbase_model_relation: adapter\ndatasets:\n  - 'org/it''s: data'\n  - "
                  "'org/more'\nlibrary_name: exfold\n");
    ck_says(card, "\nBase model: org/model\\|x, revision abc123.\n");
    ck_says(card, "| `exfold_recipe.yaml` | the recipe");
    exf_mem_free(card);
    exf_tables_free(&t);
}
END_TEST

START_TEST(a_validation_is_quoted_as_it_stands)
{
    exf_tables t;
    ck_ok(sample_tables(&t, 0, &e), e);
    char path[200];
    snprintf(path, sizeof path, "%s", exf_scratch("validation.md"));
    exf_export x = sample_export(&t);
    x.validation = path;
    exf_write_file(exf_scratch("validation.md"), validation, strlen(validation));
    char *card = card_of(&x);
    ck_says(card, "\n## Validation\n\n| variant | PPL |\n|---|---|\n| P4 | 3.4 |\n\n## Files\n");
    exf_mem_free(card);
    exf_provenance facts = {0};
    ck_ok(exf_provenance_add(&facts, &e, "data.domains", "law: 2 sequences"), e);
    ck_ok(exf_provenance_add(&facts, &e, "model.family", "x"), e);
    ck_ok(exf_provenance_add(&facts, &e, "validate.decode_batch", "16"), e);
    x.validated = &facts;
    card = card_of(&x);
    ck_says(card, "\n| P4 | 3.4 |\n\nIts text and settings:\n\n| fact | |\n|---|---|\n| `data.domains` | law: 2 sequences |\n"
                  "| `validate.decode_batch` | 16 |\n\n## Files\n");
    exf_mem_free(card);
    exf_provenance_free(&facts);
    unlink(exf_scratch("README.md"));
    exf_write_file(exf_scratch("validation.md"), "\xff", 1);
    ck_fails(write_export("card", &x, "README.md", 1, &e), EXF_FORMAT, e,
             "validation.md UTF-8");
    ck_assert_int_eq(files_left(), 1);
    exf_tables_free(&t);
}
END_TEST

/* tests/interop/load_<name>.py, which check-interop runs. */
static void ck_snippet(const exf_snippet *s, const char *target)
{
    char path[80], *file, *doc;
    size_t n, m;
    ck_assert_msg(s->code != NULL, "%s has no snippet", target);
    snprintf(path, sizeof path, "tests/interop/load_%s.py", s->name);
    ck_ok(exf_file_slurp(path, 1 << 16, &file, &n, &e), e);
    ck_assert_str_eq(s->code, file);
    ck_assert(*s->title);
    ck_ok(exf_file_slurp("docs/serving.md", 1 << 20, &doc, &m, &e), e);
    ck_assert_msg(strstr(doc, file) != NULL, "docs/serving.md does not quote %s", path);
    exf_mem_free(file);
    exf_mem_free(doc);
}

START_TEST(every_snippet_is_one_that_is_run)
{
    for (size_t i = 0; exf_writer_at(i); i++) {
        const exf_writer *w = exf_writer_at(i);
        if (w->allows) /* of experts to keep, and no tables */
            ck_assert_ptr_null(w->load.code);
        else if (strcmp(w->name, "card") != 0)
            ck_snippet(&w->load, w->name);
    }
    ck_snippet(&exf_snippet_hdf5, "hdf5");
    ck_assert_ptr_null(exf_writer_find("card")->load.code);
}
END_TEST

START_TEST(coverage_counts_evidence_only)
{
    exf_tables t;
    exf_evidence c;
    ck_ok(sample_tables(&t, 0, &e), e);
    ck_ok(exf_evidence_of_layer(&c, &t, 1, &e), e);
    ck_assert_uint_eq(c.pairs, 6);
    ck_assert_uint_eq(c.observed, 2);
    ck_assert_int_eq(c.cold, 1);
    ck_assert(c.loss == t.loss[E * E + 2]); /* 2 6: the first */
    ck_assert(c.best == t.loss[E * E + 2]);
    ck_assert_uint_eq(c.tokens, t.count[E * E + 2]);
    ck_ok(exf_evidence_of_layer(&c, &t, 0, &e), e);
    ck_assert_uint_eq(c.observed, 4);
    ck_assert(c.loss == t.loss[3]); /* 1 3 5 7: the second */
    ck_assert(c.best == t.loss[3]); /* of rows 1, 3, 7: the second */
    ck_assert_uint_eq(c.tokens, t.count[3]);
    for (int i = 0; i < E * E; i++) t.loss[i] = EXF_LOSS_NEVER;
    ck_ok(exf_evidence_of_layer(&c, &t, 0, &e), e);
    ck_assert_uint_eq(c.observed, 0);
    ck_assert(c.loss == 0 && c.best == 0 && c.tokens == 0);
    exf_tables_free(&t);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, what_was_given_stands_in_the_front_matter);
    tcase_add_test(t, a_validation_is_quoted_as_it_stands);
    tcase_add_test(t, every_snippet_is_one_that_is_run);
    tcase_add_test(t, coverage_counts_evidence_only);
}
