/* inspection.c - the contents of an artifact in memory: making them from tables, choosing layers, freeing them
 * (inspection_read.c reads them); and the specifications of the file formats, from which the Makefile makes
 * gen/specification.inc. */
#include "inspect/inspection.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void exf_inspection_free(exf_inspection *s)
{
    void *all[] = {s->layer_number, s->count, s->expert_count, s->empty_slots, s->norms,  s->coeff,
                   s->loss,         s->std_error, s->similarity,   s->aligned, s->vectors, s->half_scalar[0], s->half_loss[0],
                   s->explained,    s->layer_explained, s->layer_error};
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

static exf_code mark_range(const exf_inspection *s, long first, long last, char *keep, exf_err *err)
{
    for (long n = first; n <= last; n++) {
        int i = 0;
        while (i < s->n_layers && s->layer_number[i] != n) i++;
        if (i == s->n_layers) return exf_fail(err, EXF_USAGE, "--layers: the file holds no MoE layer %ld", n);
        keep[i] = 1;
    }
    return EXF_OK;
}

static exf_code mark_list(const exf_inspection *s, const char *layers, char *keep, exf_err *err)
{
    exf_code rc = EXF_OK;
    const char *p = layers;
    do {
        long first = read_number(&p), last = first;
        if (first >= 0 && *p == '-') p++, last = read_number(&p);
        if (first < 0 || last < first || (*p && *p != ','))
            return exf_fail(err, EXF_USAGE, "--layers: \"%s\" is no list of layers, such as 0,3,8-11", layers);
        rc = mark_range(s, first, last, keep, err);
    } while (rc == EXF_OK && *p++ == ',');
    return rc;
}

/* Moves the rows that are kept to the front. */
static void move_rows(void *array, size_t row_bytes, const char *keep, int n)
{
    char *to = array, *from = array;
    for (int i = 0; array && i < n; i++, from += row_bytes) {
        if (!keep[i]) continue;
        memmove(to, from, row_bytes);
        to += row_bytes;
    }
}

static void free_pools(exf_inspection *s)
{
    exf_inspection pools = {.pool = s->pool, .n_pools = s->n_pools, .budget = s->budget, .n_budgets = s->n_budgets};
    s->pool = NULL;
    s->budget = NULL;
    s->n_pools = s->n_budgets = 0;
    exf_inspection_free(&pools);
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
        {s->layer_error, sizeof *s->layer_error},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) move_rows(all[i].array, all[i].row, keep, s->n_layers);
    for (int i = 0; i < s->n_layers; i++) kept += (size_t)keep[i];
    s->n_layers = (int)kept;
    free_pools(s);
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
