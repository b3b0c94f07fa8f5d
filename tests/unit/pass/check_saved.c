/* check_saved.c - models that transformers' save_pretrained wrote (scripts/make_saved_models.py), each in a layout of names and
 * of config.json: their perplexity is that of transformers' own forward.  EXF_SAVED_MODELS names another directory of them. */
#include "tests/support/fixtures.h"
#include "tests/support/golden_run.h"

#include "base/mem.h"
#include "base/text.h"
#include "format/json.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MODELS = 256, MOST_SEQUENCES = 8, MOST_TOKENS = 512 };

typedef struct {
    int32_t ids[MOST_TOKENS];
    exf_span span[MOST_SEQUENCES];
    exf_batch batch;
    double float32, float64; /* transformers' perplexities; float64 is 0 where it has none */
} answers;

static void read_answers(answers *a, const char *dir)
{
    exf_err err;
    exf_json *doc;
    char path[512];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/saved.json", dir);
    ck_ok(exf_json_load(&doc, path, 1 << 20, &err), err);
    const exf_json *rows = exf_json_get(doc, "ids");
    *a = (answers){.float32 = exf_json_real(exf_json_get(doc, "perplexity_float32")),
                   .float64 = exf_json_real(exf_json_get(doc, "perplexity_float64"))};
    ck_assert(exf_json_size(rows) > 0 && exf_json_size(rows) <= MOST_SEQUENCES);
    for (size_t i = 0; i < exf_json_size(rows); i++) {
        const exf_json *row = exf_json_at(rows, i);
        a->span[i] = (exf_span){n, (int)exf_json_size(row)};
        a->batch.max_tokens = a->span[i].n_tokens > a->batch.max_tokens ? a->span[i].n_tokens : a->batch.max_tokens;
        ck_assert_uint_le(n + exf_json_size(row), MOST_TOKENS);
        for (size_t k = 0; k < exf_json_size(row); k++) a->ids[n++] = (int32_t)exf_json_int(exf_json_at(row, k));
    }
    a->batch.ids = a->ids;
    a->batch.span = a->span;
    a->batch.n_sequences = exf_json_size(rows);
    a->batch.n_tokens = n;
    exf_json_free(doc);
}

/* -log of the probability that a row of logits gives to id. */
static double loss_of(const float *logits, size_t vocab, int32_t id)
{
    double most = logits[0], sum = 0;
    for (size_t v = 1; v < vocab; v++) most = fmax(most, (double)logits[v]);
    for (size_t v = 0; v < vocab; v++) sum += exp((double)logits[v] - most);
    return most + log(sum) - (double)logits[id];
}

/* Of all tokens but the first of each sequence. */
static double perplexity_of(const answers *a, const golden_seen *s)
{
    double sum = 0;
    size_t n = 0, vocab = (size_t)s->vocab;
    for (size_t i = 0; i < a->batch.n_sequences; i++)
        for (size_t t = a->span[i].offset + 1; t < a->span[i].offset + (size_t)a->span[i].n_tokens; t++, n++)
            sum += loss_of(s->logits + (t - 1) * vocab, vocab, a->ids[t]);
    return exp(sum / (double)n);
}

static void check_one(const char *dir, int say)
{
    static answers a;
    golden_seen s;
    exf_model *m;
    exf_err err;
    read_answers(&a, dir);
    ck_ok(exf_model_open(&m, dir, &err), err);
    golden_forward(&s, m, &a.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 1);
    double seen = perplexity_of(&a, &s), want = a.float64 > 0 ? a.float64 : a.float32, off = fabs(seen / want - 1);
    if (say)
        printf("%-58s %14.9f %14.9f  %.1e %s\n", dir, seen, want, off, a.float64 > 0 ? "" : "(float32)");
    ck_assert_msg(off <= 1e-6, "%s: perplexity %.9f, transformers has %.9f: %.1e", dir, seen, want, off);
    golden_free(&s);
    exf_model_close(m);
}

static char *name[MOST_MODELS];
static int n_models;

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Lists the models in a directory, by name. */
static void find_models(const char *root)
{
    exf_err err;
    DIR *d = opendir(root);
    for (struct dirent *e; d && (e = readdir(d)) && n_models < MOST_MODELS;)
        if (e->d_name[0] != '.' && exf_mem_strdup(&name[n_models], e->d_name, "name", &err) == EXF_OK) n_models++;
    if (d) closedir(d);
    qsort(name, (size_t)n_models, sizeof *name, by_text);
}

static const char *root_of(int *chosen)
{
    const char *other = getenv("EXF_SAVED_MODELS");
    *chosen = other != NULL;
    return other ? other : "tests/golden/saved";
}

START_TEST(perplexity_is_that_of_transformers)
{
    int chosen;
    char dir[512];
    snprintf(dir, sizeof dir, "%s/%s", root_of(&chosen), name[_i]);
    check_one(dir, chosen);
}
END_TEST

START_TEST(models_are_there)
{
    int chosen;
    root_of(&chosen);
    ck_assert_int_ge(n_models, chosen ? 1 : 7);
}
END_TEST

Suite *exf_suite(void)
{
    int chosen;
    Suite *s = suite_create("saved");
    TCase *t = tcase_create("saved");
    find_models(root_of(&chosen));
    tcase_add_test(t, models_are_there);
    tcase_add_loop_test(t, perplexity_is_that_of_transformers, 0, n_models);
    suite_add_tcase(s, t);
    return s;
}
