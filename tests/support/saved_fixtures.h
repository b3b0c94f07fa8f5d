/* saved_fixtures.h - models that transformers' save_pretrained wrote (scripts/make_saved_models.py): those in
 * tests/golden/saved, or in the directory that EXF_SAVED_MODELS names; and their perplexities by us and by transformers. */
#ifndef EXF_TESTS_SAVED_FIXTURES_H
#define EXF_TESTS_SAVED_FIXTURES_H
#include "tests/support/fixtures.h"
#include "tests/support/golden_run.h"

#include "base/mem.h"
#include "format/json.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SAVED_MODELS = 256, SAVED_SEQUENCES = 8, SAVED_TOKENS = 512 };

typedef struct {
    int32_t ids[SAVED_TOKENS];
    exf_span span[SAVED_SEQUENCES];
    exf_batch batch;
    double float32, float64; /* transformers' perplexities; float64 is 0 where it has none */
} saved_answers;

static inline void saved_read(saved_answers *a, const char *dir)
{
    exf_err err;
    exf_json *doc;
    char path[640];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/saved.json", dir);
    ck_ok(exf_json_load(&doc, path, 1 << 20, &err), err);
    const exf_json *rows = exf_json_get(doc, "ids");
    *a = (saved_answers){.float32 = exf_json_real(exf_json_get(doc, "perplexity_float32")),
                   .float64 = exf_json_real(exf_json_get(doc, "perplexity_float64"))};
    ck_assert(exf_json_size(rows) > 0 && exf_json_size(rows) <= SAVED_SEQUENCES);
    for (size_t i = 0; i < exf_json_size(rows); i++) {
        const exf_json *row = exf_json_at(rows, i);
        a->span[i] = (exf_span){n, (int)exf_json_size(row)};
        a->batch.max_tokens = a->span[i].n_tokens > a->batch.max_tokens ? a->span[i].n_tokens : a->batch.max_tokens;
        ck_assert_uint_le(n + exf_json_size(row), SAVED_TOKENS);
        for (size_t k = 0; k < exf_json_size(row); k++) a->ids[n++] = (int32_t)exf_json_int(exf_json_at(row, k));
    }
    a->batch.ids = a->ids;
    a->batch.span = a->span;
    a->batch.n_sequences = exf_json_size(rows);
    a->batch.n_tokens = n;
    exf_json_free(doc);
}

/* -log of the probability that a row of logits gives to id. */
static inline double saved_loss(const float *logits, size_t vocab, int32_t id)
{
    double most = logits[0], sum = 0;
    for (size_t v = 1; v < vocab; v++) most = fmax(most, (double)logits[v]);
    for (size_t v = 0; v < vocab; v++) sum += exp((double)logits[v] - most);
    return most + log(sum) - (double)logits[id];
}

/* Of all tokens but the first of each sequence. */
static inline double saved_perplexity(const saved_answers *a, const golden_seen *s)
{
    double sum = 0;
    size_t n = 0, vocab = (size_t)s->vocab;
    for (size_t i = 0; i < a->batch.n_sequences; i++)
        for (size_t t = a->span[i].offset + 1; t < a->span[i].offset + (size_t)a->span[i].n_tokens; t++, n++)
            sum += saved_loss(s->logits + (t - 1) * vocab, vocab, a->ids[t]);
    return exp(sum / (double)n);
}

/* ---- which models --------------------------------------------------------------- */

static char *saved_name[SAVED_MODELS];
static int saved_n;

static inline int saved_by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The directory of the models; 1 in *chosen if the caller's environment names it. */
static inline const char *saved_root(int *chosen)
{
    const char *other = getenv("EXF_SAVED_MODELS");
    *chosen = other != NULL;
    return other ? other : "tests/golden/saved";
}

/* Lists the models of a directory by name. */
static inline void saved_find_in(const char *root)
{
    exf_err err;
    DIR *listing = opendir(root);
    for (struct dirent *e; listing && (e = readdir(listing)) && saved_n < SAVED_MODELS;)
        if (e->d_name[0] != '.' && exf_mem_strdup(&saved_name[saved_n], e->d_name, "name", &err) == EXF_OK) saved_n++;
    if (listing) closedir(listing);
    qsort(saved_name, (size_t)saved_n, sizeof *saved_name, saved_by_name);
}

static inline void saved_find(void)
{
    int chosen;
    saved_find_in(saved_root(&chosen));
}

/* Finds one of the "weights" of a quantized model's saved.json: a matrix [rows, cols], or MXFP4's stack [E, rows, cols / 32, 16],
 * whose rows are then those of all experts.  Returns the matrices of a stack, 0 for a matrix. */
static inline int saved_weight_find(exf_weight_source *w, const exf_model *m, void *weight, size_t *rows, size_t *cols)
{
    exf_err err;
    const exf_json *shape = exf_json_get(exf_json_value(weight), "shape");
    int64_t axes[4] = {0};
    int rank = (int)exf_json_size(shape), stack = rank == 4;
    ck_assert(rank == 2 || rank == 4);
    for (int i = 0; i < rank; i++) axes[i] = exf_json_int(exf_json_at(shape, (size_t)i));
    *rows = (size_t)(stack ? axes[0] * axes[1] : axes[0]);
    *cols = (size_t)(stack ? 2 * axes[2] * axes[3] : axes[1]);
    ck_ok(exf_weight_source_find(w, m->checkpoint, &m->quantization, m->config_path, exf_json_key(weight), axes, rank,
                                 stack ? EXF_MXFP4 : EXF_LINEAR, &err), err);
    return stack ? (int)axes[0] : 0;
}

/* Returns 1 if the decoded values of one of the "weights" have its SHA-256; the sign of zeros, which does not count, is lost. */
static inline int saved_weight_is(void *weight, float *v, size_t n)
{
    exf_err err;
    exf_hash *h;
    char hex[EXF_SHA256_HEX];
    for (size_t i = 0; i < n; i++) v[i] += 0;
    ck_ok(exf_hash_new(&h, &err), err);
    ck_ok(exf_hash_add(h, v, n * sizeof *v, &err), err);
    ck_ok(exf_hash_end(h, hex, &err), err);
    return strcmp(hex, exf_json_string(exf_json_get(exf_json_value(weight), "sha256"), NULL)) == 0;
}

/* Bound of our float32 perplexity from transformers' in float64, as a share.  It differs by the mean error of the logits at most,
 * and a logit of size 10 is a float32 sum within some 10 x 2^-24 = 6e-7 of a row of the same terms in another order; the layers
 * before it add as much.  Kernels of OpenBLAS sum in orders of their own: Haswell, Prescott and Nehalem give up to 5.0e-7, 1.02e-6
 * and 5.6e-7 (deepseek-fp8), of which this is ten times. */
#define SAVED_LIMIT 1e-5

/* Returns 1 if a save of a quantizer's library has logits beside it (scripts/make_quantizer_saves.py). */
static inline int saved_has_logits(char path[640], const char *dir)
{
    snprintf(path, 640, "%s/golden.safetensors", dir);
    return access(path, R_OK) == 0;
}

/* Fails unless each token's logits are those within `limit`, as ||a - b|| / ||b||. */
static inline void saved_check_logits(const char *dir, const golden_seen *s, double limit, int show)
{
    exf_err err;
    exf_st_file *f;
    char path[640];
    size_t n, vocab = (size_t)s->vocab;
    double worst = 0;
    if (!saved_has_logits(path, dir)) return;
    ck_ok(exf_st_open(&f, path, &err), err);
    float *want = golden_tensor(f, "logits", &n);
    ck_assert_uint_eq(n, s->n_rows * vocab);
    for (size_t t = 0; t < s->n_rows; t++) worst = fmax(worst, golden_distance(s->logits + t * vocab, want + t * vocab, vocab));
    if (show) printf("%-58s logits of the worst token %.1e off\n", dir, worst);
    ck_assert_msg(worst <= limit, "%s: a token's logits are %.1e from the golden", dir, worst);
    exf_mem_free(want);
    exf_st_close(f);
}

/* Fails unless the perplexity of the model in dir on a backend in float32 is transformers' within `limit`, and the logits where
 * they are stored; 1 in show prints both. */
static inline void saved_check_in(const char *dir, const exf_backend *backend, double limit, int show)
{
    static saved_answers a;
    golden_seen s;
    exf_model *m;
    exf_err err;
    saved_read(&a, dir);
    ck_ok(exf_model_open(&m, dir, &err), err);
    golden_forward(&s, m, &a.batch, backend, EXF_COMPUTE_F32, 1);
    double seen = saved_perplexity(&a, &s), want = a.float64 > 0 ? a.float64 : a.float32, off = fabs(seen / want - 1);
    if (show) printf("%-58s %14.9f %14.9f  %.1e %s\n", dir, seen, want, off, a.float64 > 0 ? "" : "(float32)");
    ck_assert_msg(off <= limit, "%s: perplexity %.9f, transformers has %.9f: %.1e", dir, seen, want, off);
    saved_check_logits(dir, &s, limit, show);
    golden_free(&s);
    exf_model_close(m);
}

/* The same of model i; one in a chosen directory is printed. */
static inline void saved_check(int i, const exf_backend *backend, double limit)
{
    char dir[512];
    int chosen;
    snprintf(dir, sizeof dir, "%s/%s", saved_root(&chosen), saved_name[i]);
    saved_check_in(dir, backend, limit, chosen);
}
#endif
