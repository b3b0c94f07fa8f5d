/* tables_pt.c - see tables_pt.h. */
#include "artifact/tables_pt.h"

#include "base/hash.h"
#include "base/mem.h"
#include "format/ptfile_read.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FROM = 2, MOST_EXPERTS = 65536, MOST_LAYERS = 1024 };

/* A layout: the keys of scalars, losses and norms, and the part of a path that asks for it. */
typedef struct {
    const char *part, *coeff, *loss, *norms;
    int by_norm; /* its losses are by Frobenius norm */
} layout;
static const layout layouts[] = {
    {"", "coeff", "loss", "expert_norms", 0},
    {"#prefill", "prefill_coeff", "prefill_selection_loss", "norms", 1},
    {"#decode", "decode_coeff", "decode_loss", "norms", 1},
};

/* The length of the path without its part. */
static size_t file_length(const char *path)
{
    size_t n = strlen(path);
    for (size_t i = 1; i < sizeof layouts / sizeof *layouts; i++) {
        size_t k = strlen(layouts[i].part);
        if (n > k && strcmp(path + n - k, layouts[i].part) == 0) return n - k;
    }
    return n;
}

int exf_tables_pt_is_one(const char *path)
{
    char file[4096]; /* PATH_MAX of Linux */
    size_t n = file_length(path);
    if (n >= sizeof file) return 0;
    memcpy(file, path, n);
    file[n] = '\0';
    return exf_pt_is_one(file);
}

exf_code exf_tables_pt_digest(const char *path, char hex[EXF_SHA256_HEX], exf_err *err)
{
    char *file = NULL, of_bytes[EXF_SHA256_HEX + 16];
    size_t n = file_length(path);
    exf_code rc;
    EXF_TRY(exf_mem_dup(&file, path, n, "path", err));
    EXF_TRY(exf_hash_file(file, hex, err));
    if (path[n]) {
        snprintf(of_bytes, sizeof of_bytes, "%s%s", hex, path + n);
        rc = exf_hash_bytes(of_bytes, strlen(of_bytes), hex, err);
    }
out:
    exf_mem_free(file);
    return rc;
}

/* ---- one layout ------------------------------------------------------------------------- */

typedef struct {
    exf_pt_file *f;
    const layout *as;
    int64_t m, e;  /* layers of the model, experts */
    float *coeff, *loss, *norms; /* [M, E, E], [M, E, E], [M, E] */
} source;

static exf_code check_shape(const source *s, const char *key, const exf_pt *v, int rank, exf_err *err)
{
    char shape[96], expected[96];
    const int64_t sizes[] = {s->m, s->e, s->e};
    const exf_tensor *t = &v->tensor;
    int good = v->kind == EXF_PT_TENSOR && t->dtype == EXF_DT_F32 && t->rank == rank && t->shape[0] == s->m;
    for (int i = 1; good && i < rank; i++) good = t->shape[i] == s->e;
    if (good) return EXF_OK;
    if (v->kind != EXF_PT_TENSOR) return exf_fail(err, EXF_FORMAT, "%s: \"%s\" is no tensor", exf_pt_path(s->f), key);
    return exf_fail(err, EXF_FORMAT, "%s: \"%s\" is %s %s, expected F32 %s", exf_pt_path(s->f), key, exf_dtype_name(t->dtype),
                    exf_shape_text(shape, sizeof shape, t->shape, t->rank), exf_shape_text(expected, sizeof expected, sizes, rank));
}

static exf_code read_table(const source *s, const char *key, int rank, float **out, exf_err *err)
{
    const exf_pt *v = exf_pt_get(exf_pt_root(s->f), key);
    exf_code rc;
    EXF_TRY(check_shape(s, key, v, rank, err));
    EXF_TRY(exf_mem_new(out, (size_t)exf_tensor_count(&v->tensor), sizeof **out, key, err));
    rc = exf_pt_read(s->f, v, *out, err);
out:
    return rc;
}

static exf_code read_tables(source *s, exf_err *err)
{
    const exf_pt *coeff = exf_pt_get(exf_pt_root(s->f), s->as->coeff);
    exf_code rc;
    if (coeff->kind == EXF_PT_TENSOR && coeff->tensor.rank == 3) {
        s->m = coeff->tensor.shape[0];
        s->e = coeff->tensor.shape[1];
    }
    if (s->m < 1 || s->e < 2 || s->m > MOST_LAYERS || s->e > MOST_EXPERTS)
        return exf_fail(err, EXF_FORMAT, "%s: \"%s\" is no tensor of layers, experts and experts", exf_pt_path(s->f), s->as->coeff);
    EXF_TRY(read_table(s, s->as->coeff, 3, &s->coeff, err));
    EXF_TRY(read_table(s, s->as->loss, 3, &s->loss, err));
    EXF_TRY(read_table(s, s->as->norms, 2, &s->norms, err));
out:
    return rc;
}

static void source_free(source *s)
{
    exf_mem_free(s->coeff);
    exf_mem_free(s->loss);
    exf_mem_free(s->norms);
    s->coeff = s->loss = s->norms = NULL;
}

/* ---- which layout ------------------------------------------------------------------------- */

static int has_layout(const exf_pt_file *f, const layout *as)
{
    const exf_pt *root = exf_pt_root(f);
    return exf_pt_get(root, as->coeff) && exf_pt_get(root, as->loss) && exf_pt_get(root, as->norms);
}

static exf_code unknown(const exf_pt_file *f, exf_err *err)
{
    const exf_pt *root = exf_pt_root(f), *first = root->kind == EXF_PT_DICT && root->n ? &root->item[0] : NULL;
    char keys[120] = "nothing";
    size_t n = 0;
    if (exf_pt_get(first, "expert_frequency"))
        return exf_fail(err, EXF_FORMAT,
                        "%s: holds an observer's state of REAP: sums of single experts, of which no pair can be folded; calibrate "
                        "the model and use the variant reapN for such a pruning",
                        exf_pt_path(f));
    for (size_t i = 0; root->kind == EXF_PT_DICT && i < root->n && n < sizeof keys; i++)
        n += (size_t)snprintf(keys + n, sizeof keys - n, "%s%.24s", i ? ", " : "", root->item[i].key);
    return exf_fail(err, EXF_FORMAT,
                    "%s: holds %s; expected a plugin's coeff, loss and expert_norms, or prefill_coeff, prefill_selection_loss, "
                    "decode_coeff, decode_loss and norms",
                    exf_pt_path(f), keys);
}

/* Refuses two sets that differ. */
static exf_code check_both(const source *s, exf_err *err)
{
    source other = {.f = s->f, .as = &layouts[FROM]};
    size_t cells = (size_t)s->m * (size_t)s->e * (size_t)s->e;
    exf_code rc;
    if (!has_layout(s->f, other.as)) return EXF_OK;
    EXF_TRY(read_tables(&other, err));
    if (other.m != s->m || other.e != s->e || memcmp(other.coeff, s->coeff, cells * sizeof(float)) != 0 ||
        memcmp(other.loss, s->loss, cells * sizeof(float)) != 0)
        rc = exf_fail(err, EXF_USAGE, "%s: its tables of prefill and decode differ; name one: %s#prefill or %s#decode",
                      exf_pt_path(s->f), exf_pt_path(s->f), exf_pt_path(s->f));
out:
    source_free(&other);
    return rc;
}

static exf_code choose(source *s, const char *part, exf_err *err)
{
    exf_code rc;
    for (size_t i = 0; !s->as && i < sizeof layouts / sizeof *layouts; i++)
        if ((!*part || strcmp(part, layouts[i].part) == 0) && has_layout(s->f, &layouts[i])) s->as = &layouts[i];
    if (!s->as) return unknown(s->f, err);
    EXF_TRY(read_tables(s, err));
    if (!*part && s->as->by_norm) EXF_TRY(check_both(s, err));
out:
    return rc;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static int has_evidence(const source *s, int64_t layer)
{
    size_t e = (size_t)s->e, first = (size_t)layer * e * e;
    for (size_t i = 0; i < e * e; i++)
        if (i / e != i % e && !(s->loss[first + i] >= EXF_LOSS_NEVER)) return 1; /* NaN too, to be refused */
    return 0;
}

/* Losses that are no numbers stay, for exf_tables_check() to refuse. */
static void fill_layer(exf_tables *t, int to, const source *s, int64_t from)
{
    size_t e = (size_t)s->e, there = (size_t)to * e * e, here = (size_t)from * e * e;
    for (size_t i = 0; i < e * e; i++) {
        int same = i / e == i % e, never = same || (s->loss[here + i] >= EXF_LOSS_NEVER && isfinite(s->loss[here + i]));
        t->coeff[there + i] = same ? 1 : never ? 0 : s->coeff[here + i];
        t->loss[there + i] = never ? EXF_LOSS_NEVER : s->loss[here + i];
        t->count[there + i] = !never;
        if (t->frobenius) t->frobenius[there + i] = t->loss[there + i];
        t->expert_count[(size_t)to * e + i / e] |= !never;
    }
    memcpy(t->expert_norms + (size_t)to * e, s->norms + (size_t)from * e, e * sizeof *s->norms);
}

static exf_code make_tables(exf_tables *t, const source *s, exf_err *err)
{
    int32_t number[MOST_LAYERS];
    int n = 0;
    exf_code rc;
    for (int64_t l = 0; l < s->m; l++)
        if (has_evidence(s, l)) number[n++] = (int32_t)l;
    if (n == 0) return exf_fail(err, EXF_FORMAT, "%s: no layer has a pair with evidence", exf_pt_path(s->f));
    const exf_run_shape shape = {.n_experts = s->e};
    EXF_TRY(exf_tables_new(t, &shape, number, n, NULL, 0, err));
    if (s->as->by_norm)
        EXF_TRY(exf_mem_new(&t->frobenius, (size_t)n * (size_t)s->e * (size_t)s->e, sizeof *t->frobenius, "tables", err));
    for (int i = 0; i < n; i++) fill_layer(t, i, s, number[i]);
    rc = exf_provenance_add(&t->provenance, err, "read_from", "%s",
                            s->as->by_norm ? "a .pt file of the DeepSeek-V4 plugins" : "a .pt file of the Qwen3 plugin");
out:
    return rc;
}

exf_code exf_tables_pt_read(exf_tables *t, const char *path, exf_err *err)
{
    source s = {.f = NULL};
    char *file = NULL;
    size_t n = file_length(path);
    exf_code rc;
    memset(t, 0, sizeof *t);
    EXF_TRY(exf_mem_dup(&file, path, n, "path", err));
    EXF_TRY(exf_pt_open(&s.f, file, err));
    EXF_TRY(choose(&s, path + n, err));
    EXF_TRY(make_tables(t, &s, err));
    EXF_TRY(exf_tables_check(t, file, err));
out:
    source_free(&s);
    exf_pt_close(s.f);
    exf_mem_free(file);
    if (rc != EXF_OK) exf_tables_free(t);
    return rc;
}
