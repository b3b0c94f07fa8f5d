/* inspection.c - the contents of an artifact in memory: making them from tables, choosing layers, freeing them
 * (inspection_read.c reads them); and the specifications of the file formats, from which the Makefile makes
 * gen/specification.inc. */
#include "inspect/inspection.h"

#include "base/mem.h"
#include "solve/solve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void exf_inspection_free(exf_inspection *s)
{
    void *all[] = {s->layer_number, s->count, s->expert_count, s->empty_slots, s->norms,  s->coeff,
                   s->loss,         s->std_error, s->similarity,   s->aligned, s->half_scalar[0], s->half_loss[0],
                   s->explained,    s->layer_explained, s->layer_error,
                   s->least_eigenvalue, s->median_cosine_sq, s->near_copies};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) exf_mem_free(all[i]);
    for (int i = 0; i < s->n_pools; i++) {
        exf_mem_free(s->pool[i].members);
        exf_mem_free(s->pool[i].target_ids);
        exf_mem_free(s->pool[i].target_scale);
    }
    exf_mem_free(s->pool);
    for (int i = 0; i < s->n_budgets; i++) {
        exf_mem_free(s->budget[i].scale);
        exf_mem_free(s->budget[i].kept);
        exf_mem_free(s->budget[i].predicted.kept);
    }
    exf_mem_free(s->budget);
    exf_sequence_list_free(&s->sequences);
    exf_provenance_free(&s->provenance);
    exf_mem_free(s->part);
    memset(s, 0, sizeof *s);
}

int exf_inspection_observed(const exf_inspection *s, size_t at)
{
    size_t e = (size_t)s->shape.n_experts;
    if (at / e % e == at % e) return 0;
    return s->loss ? s->loss[at] < EXF_LOSS_NEVER : s->count[at] > 0;
}

void exf_inspection_take_tables(exf_inspection *s, exf_tables *t)
{
    size_t e = (size_t)t->shape.n_experts;
    s->kind = &exf_artifact_tables;
    s->version = s->kind->version;
    s->shape = t->shape;
    s->n_layers = t->n_layers;
#define TAKE(field, from) s->field = t->from, t->from = NULL
    TAKE(layer_number, layer_number);
    TAKE(count, count);
    TAKE(expert_count, expert_count);
    TAKE(empty_slots, empty_slots);
    TAKE(norms, expert_norms);
    TAKE(coeff, coeff);
    TAKE(loss, loss);
    TAKE(std_error, std_error);
    TAKE(similarity, similarity);
    for (int half = 0; half < 2; half++) {
        TAKE(half_scalar[half], half_scalar[half]);
        TAKE(half_loss[half], half_loss[half]);
    }
    TAKE(explained, norm_head.explained);
    TAKE(layer_explained, norm_head.layer_explained);
    TAKE(layer_error, norm_head.layer_error);
    TAKE(least_eigenvalue, least_eigenvalue);
    TAKE(median_cosine_sq, median_cosine_sq);
    TAKE(near_copies, near_copies);
    TAKE(pool, pool);
    TAKE(budget, budget);
#undef TAKE
    s->n_pools = t->n_pools;
    t->n_pools = 0;
    s->n_budgets = t->n_budgets;
    t->n_budgets = 0;
    s->provenance = t->provenance;
    memset(&t->provenance, 0, sizeof t->provenance);
    for (size_t i = 0; s->similarity && i < (size_t)s->n_layers * e * e; i++)
        if (!exf_inspection_observed(s, i) && i / e % e != i % e) s->similarity[i] = NAN;
    exf_tables_free(t);
}

/* ---- choosing layers ---------------------------------------------------------------- */

/* Reads the layer number at *p, at most 65535, and moves on; returns -1 for none. */
static long read_number(const char **p)
{
    char *end;
    if (**p < '0' || **p > '9') return -1;
    long n = strtol(*p, &end, 10);
    *p = end;
    return n > 65535 ? -1 : n;
}

static exf_code mark_list(const exf_inspection *s, const char *layers, char *keep, exf_err *err)
{
    const char *p = layers;
    do {
        long first = read_number(&p), last = first;
        if (first >= 0 && *p == '-') p++, last = read_number(&p);
        if (first < 0 || last < first || (*p && *p != ','))
            return exf_fail(err, EXF_USAGE, "--layers: \"%s\" is no list of layers, such as 0,3,8-11", layers);
        for (long n = first; n <= last; n++) {
            int i = 0;
            while (i < s->n_layers && s->layer_number[i] != n) i++;
            if (i == s->n_layers) return exf_fail(err, EXF_USAGE, "--layers: the file holds no MoE layer %ld", n);
            if (keep[i]) return exf_fail(err, EXF_USAGE, "--layers: \"%s\" names layer %ld twice", layers, n);
            keep[i] = 1;
        }
    } while (*p++ == ',');
    return EXF_OK;
}

exf_code exf_inspection_select(exf_inspection *s, const char *layers, exf_err *err)
{
    size_t e = (size_t)s->shape.n_experts, kept = 0;
    char *keep = NULL;
    exf_code rc;
    if (strcmp(layers, "all") == 0) return EXF_OK;
    EXF_TRY(exf_mem_new(&keep, (size_t)s->n_layers, 1, "layers", err));
    EXF_TRY(mark_list(s, layers, keep, err));
    const struct {
        void *array;
        size_t row;
    } all[] = {
        {s->layer_number, sizeof *s->layer_number},     {s->count, e * e * sizeof *s->count},
        {s->expert_count, e * sizeof *s->expert_count}, {s->empty_slots, sizeof *s->empty_slots},
        {s->norms, e * sizeof *s->norms},
        {s->coeff, e * e * sizeof *s->coeff},           {s->loss, e * e * sizeof *s->loss},
        {s->std_error, e * e * sizeof *s->std_error},   {s->similarity, e * e * sizeof *s->similarity},
        {s->aligned, e * e * sizeof *s->aligned},
        {s->half_scalar[0], e * e * sizeof(float)},     {s->half_scalar[1], e * e * sizeof(float)},
        {s->half_loss[0], e * e * sizeof(float)},       {s->half_loss[1], e * e * sizeof(float)},
        {s->explained, e * sizeof *s->explained},       {s->layer_explained, sizeof *s->layer_explained},
        {s->layer_error, sizeof *s->layer_error},       {s->least_eigenvalue, sizeof *s->least_eigenvalue},
        {s->median_cosine_sq, sizeof *s->median_cosine_sq}, {s->near_copies, sizeof *s->near_copies},
    };
    for (size_t i = 0; i < (size_t)s->n_layers; i++) { /* rows that are kept move to the front */
        if (!keep[i]) continue;
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            if (all[k].array) memmove((char *)all[k].array + kept * all[k].row, (char *)all[k].array + i * all[k].row, all[k].row);
        kept++;
    }
    s->n_layers = (int)kept;
    exf_inspection pools = {.pool = s->pool, .n_pools = s->n_pools, .budget = s->budget, .n_budgets = s->n_budgets};
    s->pool = NULL;
    s->budget = NULL;
    s->n_pools = s->n_budgets = 0;
    exf_inspection_free(&pools);
out:
    exf_mem_free(keep);
    return rc;
}

/* ---- specifications --------------------------------------------------------------------------- */

static const struct {
    const char *name, *line;
} lines[] = {
#include "gen/specification.inc"
};

enum { N_LINES = sizeof lines / sizeof *lines };

const char *exf_specification_line(const char *name, size_t i)
{
    for (size_t k = 0; k < N_LINES; k++)
        if (strcmp(lines[k].name, name) == 0 && i-- == 0) return lines[k].line;
    return NULL;
}

const char *exf_specification_name(size_t i)
{
    for (size_t k = 0; k < N_LINES; k++)
        if ((k == 0 || strcmp(lines[k].name, lines[k - 1].name) != 0) && i-- == 0) return lines[k].name;
    return NULL;
}

/* ---- quantiles of numbers, and each layer in a dozen of them ------------------------------------- */

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void exf_sort(double *x, size_t n)
{
    qsort(x, n, sizeof *x, rising);
}

double exf_quantile(const double *sorted, size_t n, double q)
{
    return n ? sorted[(size_t)(q * (double)(n - 1))] : (double)NAN;
}

double exf_mean(const double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i];
    return n ? sum / (double)n : (double)NAN;
}

/* ---- layers ------------------------------------------------------------------------------------ */

/* Layers [first, first + n) of an inspection and room for one number of each pair. */
typedef struct {
    const exf_inspection *s;
    size_t first, n, e;
    double *scratch;
} span;

static size_t first_pair(const span *x)
{
    return x->first * x->e * x->e;
}

static size_t end_pair(const span *x)
{
    return (x->first + x->n) * x->e * x->e;
}

static void find_quartiles(double *x, size_t n, double out[3])
{
    exf_sort(x, n);
    for (int i = 0; i < 3; i++) out[i] = exf_quantile(x, n, 0.25 * (i + 1));
}

static void sum_up_losses(const span *x, exf_layer_summary *row)
{
    size_t n = 0, below = 0;
    for (size_t i = first_pair(x); i < end_pair(x); i++) {
        if (!exf_inspection_observed(x->s, i)) continue;
        x->scratch[n++] = (double)x->s->loss[i];
        below += x->s->loss[i] < 0.5f;
    }
    exf_sort(x->scratch, n);
    row->loss = exf_quantile(x->scratch, n, 0.5);
    row->below_half = n ? (double)below / (double)n : (double)NAN;
    n = 0;
    for (size_t source = x->first * x->e; source < (x->first + x->n) * x->e; source++) {
        float best = EXF_LOSS_NEVER;
        for (size_t i = source * x->e; i < (source + 1) * x->e; i++) best = x->s->loss[i] < best ? x->s->loss[i] : best;
        if (best < EXF_LOSS_NEVER) x->scratch[n++] = (double)best;
    }
    find_quartiles(x->scratch, n, row->best);
}

static void sum_up_stability(const span *x, exf_layer_summary *row)
{
    exf_stability all = {.tokens = 0};
    exf_choice_sums choice = {.own = 0};
    for (size_t l = x->first; l < x->first + x->n; l++) {
        size_t at = l * x->e * x->e;
        const float *const half[2] = {x->s->half_loss[0] + at, x->s->half_loss[1] + at};
        const float *const scalar[2] = {x->s->half_scalar[0] + at, x->s->half_scalar[1] + at};
        exf_choice_add(&choice, scalar, half, x->s->expert_count + l * x->e, x->e);
        exf_stability s = exf_stability_of(x->s->loss + at, half, x->s->expert_count + l * x->e, x->e);
        all.tokens += s.tokens;
        all.stable += s.stable;
    }
    row->cost = exf_choice_cost(&choice);
    if (all.tokens) row->stable = (double)all.stable / (double)all.tokens;
}

static double mean_observed(const span *x, const float *value)
{
    size_t n = 0;
    for (size_t i = first_pair(x); value && i < end_pair(x); i++)
        if (exf_inspection_observed(x->s, i) && !isnan(value[i])) x->scratch[n++] = (double)value[i];
    return exf_mean(x->scratch, n);
}

static void sum_up(const span *x, exf_layer_summary *row)
{
    double none = (double)NAN;
    *row = (exf_layer_summary){.layer = -1, .loss = none, .below_half = none, .best = {none, none, none}, .stable = none,
                               .cost = none, .explained = none, .explained_error = none, .least_eigenvalue = none,
                               .cosine_sq = none, .near_copies = none, .norm_min = none, .norm_max = none,
                               .expert_min = -1, .expert_max = -1, .layer_min = -1, .layer_max = -1};
    const exf_inspection *s = x->s;
    const size_t first = x->first * x->e, end = (x->first + x->n) * x->e; /* experts */
    if (x->n == 1) row->layer = s->layer_number[x->first];
    for (size_t i = first_pair(x); i < end_pair(x); i++)
        if (exf_inspection_observed(s, i)) x->scratch[row->observed++] = (double)s->count[i];
    row->pairs = x->n * x->e * (x->e - 1);
    find_quartiles(x->scratch, row->observed, row->tokens);
    row->experts = x->n * x->e;
    for (size_t i = first; i < end; i++) row->cold += s->expert_count[i] == 0;
    if (s->loss) sum_up_losses(x, row);
    if (s->half_loss[0]) sum_up_stability(x, row);
    if (s->layer_explained) { /* layers together have the means */
        row->explained = row->explained_error = 0;
        for (size_t l = x->first; l < x->first + x->n; l++) {
            row->explained += (double)s->layer_explained[l] / (double)x->n;
            row->explained_error += (double)s->layer_error[l] * (double)s->layer_error[l];
        }
        row->explained_error = sqrt(row->explained_error) / (double)x->n;
        for (size_t i = first; i < end; i++) row->by_rms += s->explained[i] == 0;
    }
    if (s->least_eigenvalue) { /* layers together have the least, and the means of the others */
        row->least_eigenvalue = HUGE_VAL;
        row->cosine_sq = row->near_copies = 0;
        for (size_t l = x->first; l < x->first + x->n; l++) {
            row->least_eigenvalue = fmin(row->least_eigenvalue, (double)s->least_eigenvalue[l]);
            row->cosine_sq += (double)s->median_cosine_sq[l] / (double)x->n;
            row->near_copies += (double)s->near_copies[l] / (double)x->n;
        }
    }
    row->similarity = mean_observed(x, s->similarity);
    row->aligned = mean_observed(x, s->aligned);
    for (size_t i = first; i < end; i++) {
        double h = (double)s->norms[i];
        int expert = (int)(i % x->e), layer = s->layer_number[i / x->e];
        if (isnan(h) || (s->expert_count[i] == 0 && row->cold < row->experts)) continue;
        if (!(h >= row->norm_min)) row->norm_min = h, row->expert_min = expert, row->layer_min = layer;
        if (!(h <= row->norm_max)) row->norm_max = h, row->expert_max = expert, row->layer_max = layer;
    }
}

exf_code exf_summarise(const exf_inspection *s, exf_layer_summary *rows, exf_err *err)
{
    size_t e = (size_t)s->shape.n_experts, n = (size_t)s->n_layers;
    span x = {.s = s, .e = e, .n = 1};
    exf_code rc = exf_mem_new(&x.scratch, n * e * e, sizeof *x.scratch, "summary", err);
    if (rc != EXF_OK) return rc;
    for (; x.first < n; x.first++) sum_up(&x, &rows[x.first]);
    x.first = 0;
    x.n = n;
    sum_up(&x, &rows[n]);
    rows[n].layer = -1;
    exf_mem_free(x.scratch);
    return EXF_OK;
}

/* ---- pools and budgets ----------------------------------------------------------------------------------- */

double exf_budget_layer_mean(const exf_inspection *s, const exf_budget *b, int layer_index)
{
    size_t least = (size_t)exf_budget_least(b), k = (size_t)s->shape.top_k + 1 - least;
    const uint64_t *kept = b->kept + (size_t)layer_index * k;
    uint64_t sum = 0, n = 0;
    for (size_t p = 0; p < k; p++) {
        sum += kept[p] * (p + least);
        n += kept[p];
    }
    return n ? (double)sum / (double)n : NAN;
}

void exf_pools_json(exf_jw *w, const exf_inspection *s)
{
    exf_jw_open(w, "pools", '[');
    for (int i = 0; i < s->n_pools; i++) {
        size_t size = (size_t)s->pool[i].size;
        exf_jw_open(w, NULL, '{');
        exf_jw_int(w, "size", s->pool[i].size);
        exf_jw_text(w, "by", s->pool[i].by);
        exf_jw_open(w, "members", '[');
        for (size_t l = 0; l < (size_t)s->n_layers; l++) {
            exf_jw_open(w, NULL, '[');
            for (size_t k = 0; k < size; k++) exf_jw_int(w, NULL, s->pool[i].members[l * size + k]);
            exf_jw_close(w);
        }
        exf_jw_close(w);
        exf_jw_close(w);
    }
    exf_jw_close(w);
}

void exf_budgets_json(exf_jw *w, const exf_inspection *s)
{
    if (!s->n_budgets) return;
    exf_jw_open(w, "budgets", '[');
    for (int i = 0; i < s->n_budgets; i++) {
        const exf_budget *b = &s->budget[i];
        exf_jw_open(w, NULL, '{');
        exf_jw_real(w, "budget", b->budget);
        exf_jw_text(w, "rule", b->rule);
        exf_jw_real(w, "lambda", b->lambda);
        exf_jw_real(w, "mean", b->mean);
        if (b->predicted.kept) {
            exf_jw_real(w, "predicted_lambda", b->predicted.lambda);
            exf_jw_real(w, "predicted_mean", b->predicted.mean);
        }
        exf_jw_open(w, "layers", '[');
        for (int l = 0; l < s->n_layers; l++) {
            exf_jw_open(w, NULL, '{');
            exf_jw_int(w, "layer", s->layer_number[l]);
            exf_jw_real(w, "scale", b->scale[l]);
            exf_jw_real(w, "mean", exf_budget_layer_mean(s, b, l));
            exf_jw_open(w, "kept", '[');
            int64_t k = s->shape.top_k + 1 - exf_budget_least(b);
            for (int64_t p = 0; p < k; p++) exf_jw_count(w, NULL, b->kept[l * k + p]);
            exf_jw_close(w);
            exf_jw_close(w);
        }
        exf_jw_close(w);
        exf_jw_close(w);
    }
    exf_jw_close(w);
}
