/* cross_check.c - see cross_check.h: what the GPU copies of the tokens that are checked, and the check on the host. */
#include "accumulate/cross_check.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/tensor.h"
#include "kernels/rows/simd.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

_Static_assert((int)EXF_COMMON_INPUT_UNIT <= (int)EXF_CHECKED_TOKENS, "a part of common input has room for a unit");

enum { RNG_STREAM = 0x43484b }; /* of the rows that are checked */

/* ---- memory --------------------------------------------------------------------------------------- */

static size_t most_width(int top_k, int common_input)
{
    return common_input && top_k < EXF_CHECKED_EXPERTS ? (size_t)EXF_CHECKED_EXPERTS : (size_t)top_k;
}

/* Cells of a part: of each token's experts. */
static size_t most_cells(int top_k, int common_input)
{
    size_t width = most_width(top_k, common_input);
    return EXF_CHECKED_TOKENS * width * width;
}

uint64_t exf_cross_check_bytes(int n_experts, int top_k, int common_input)
{
    uint64_t cell = EXF_CELL_WORDS * sizeof(uint64_t) + EXF_CELL_VALUES * sizeof(double);
    return most_cells(top_k, common_input) * cell + (common_input ? (uint64_t)n_experts * sizeof(int32_t) : 0);
}

/* Gives a part its places in staging memory, and returns the bytes that they take. */
static size_t lay_out(exf_checked_part *p, char *at, const exf_cross_check *check, int common_input)
{
    size_t slots = EXF_CHECKED_TOKENS * most_width(check->top_k, common_input);
    size_t added = most_cells(check->top_k, common_input) * EXF_CELL_VALUES * sizeof(double);
    size_t outputs = slots * (size_t)check->d_model * sizeof(float), ids = slots * sizeof(int32_t);
    size_t bytes = (added + outputs + 2 * ids + 63) / 64 * 64;
    if (!at) return bytes;
    p->added = (double *)(void *)at;
    p->outputs.p = at + added;
    p->ids = (int32_t *)(void *)(at + added + outputs);
    p->weights = (float *)(void *)(at + added + outputs + ids);
    return bytes;
}

static exf_code send_experts(exf_cross_check *check, exf_err *err)
{
    int32_t *ids = NULL;
    exf_queue *q = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&ids, (size_t)check->n_experts, sizeof *ids, "experts", err));
    for (int e = 0; e < check->n_experts; e++) ids[e] = e;
    EXF_TRY(check->b->alloc(&check->experts, (size_t)check->n_experts, sizeof *ids, "cross-check", err));
    EXF_TRY(check->b->open(&q, EXF_COMPUTE_F32, err));
    check->b->upload(q, check->experts, ids, (size_t)check->n_experts * sizeof *ids);
    EXF_TRY(check->b->finish(q, err));
out:
    if (q) check->b->close(q);
    exf_mem_free(ids);
    return rc;
}

exf_code exf_cross_check_open(exf_cross_check *check, const exf_backend *b, int n_experts, int top_k, int d_model, int common_input,
                              exf_weighting weighting, exf_err *err)
{
    exf_checked_part none;
    size_t cells = most_cells(top_k, common_input), at = 0;
    exf_code rc;
    *check = (exf_cross_check){.b = b, .n_experts = n_experts, .top_k = top_k, .d_model = d_model, .weighting = weighting,
                           .experts_only = common_input};
    exf_worker_open(&check->worker);
    EXF_TRY(b->alloc(&check->before, cells * EXF_CELL_WORDS, sizeof *check->before, "cross-check", err));
    EXF_TRY(b->alloc(&check->added, cells * EXF_CELL_VALUES, sizeof *check->added, "cross-check", err));
    EXF_TRY(b->gpu->alloc_staging(&check->staging, (common_input ? 4 : 2) * lay_out(&none, NULL, check, common_input),
                                  "cross-check", err));
    for (int l = 0; l < 2; l++) {
        check->layer[l].of = check;
        at += lay_out(&check->layer[l].routed, check->staging + at, check, common_input);
        if (common_input) at += lay_out(&check->layer[l].common, check->staging + at, check, common_input);
    }
    if (common_input) EXF_TRY(send_experts(check, err));
out:
    return rc;
}

void exf_cross_check_close(exf_cross_check *check)
{
    exf_worker_close(&check->worker);
    if (!check->b) return;
    check->b->free(check->before);
    check->b->free(check->added);
    check->b->free(check->experts);
    check->b->gpu->free_staging(check->staging);
    memset(check, 0, sizeof *check);
}

/* ---- which tokens ----------------------------------------------------------------------------------- */

int exf_cross_check_next(exf_cross_check *check, const exf_moe_block *b, size_t at, int n, exf_checked_part **part)
{
    exf_checked_part *p = &check->layer[check->turn].routed;
    size_t row = b->row + at, rows = b->batch->n_tokens, first; /* at which the tokens that are checked in a layer begin */
    size_t starts = rows > EXF_CHECKED_TOKENS ? rows - EXF_CHECKED_TOKENS + 1 : 1;
    *part = NULL;
    if (!check->b || p->n_tokens) return n;
    first = (size_t)exf_rng_below(starts, (uint64_t)b->layer, RNG_STREAM, 0);
    if (first < row || first >= row + (size_t)n) return n;
    if (first > row) return (int)(first - row);
    p->n_tokens = n < EXF_CHECKED_TOKENS ? n : EXF_CHECKED_TOKENS;
    p->width = b->top_k;
    p->sequence = exf_sequence_of(b->batch, 0, row);
    p->position = (int)(row - b->batch->span[p->sequence].offset);
    *part = p;
    return p->n_tokens;
}

exf_checked_part *exf_cross_check_next_common(exf_cross_check *check, const exf_common_input_block *b, int i)
{
    exf_checked_part *p = &check->layer[check->turn].common;
    const exf_common_input_part *of = &b->part[i];
    if (!check->b || p->n_tokens || i != b->layer % b->n_parts) return NULL;
    p->n_tokens = of->n_tokens < EXF_COMMON_INPUT_UNIT ? of->n_tokens : EXF_COMMON_INPUT_UNIT;
    p->width = check->n_experts < EXF_CHECKED_EXPERTS ? check->n_experts : EXF_CHECKED_EXPERTS;
    p->common_input = 1;
    p->sequence = of->sequence;
    p->position = -1;
    return p;
}

/* ---- what is copied ----------------------------------------------------------------------------------- */

static exf_cells_call cells_of(const exf_cross_check *check, const exf_checked_part *p, const int32_t *ids)
{
    return (exf_cells_call){.n_experts = check->n_experts, .n_rows = p->common_input ? 1 : p->n_tokens, .width = p->width,
                            .ids = ids, .before = check->before, .added = check->added};
}

static void *output_at(const exf_checked_part *p, size_t elements)
{
    return (char *)(uintptr_t)p->outputs.p + elements * exf_number_bytes(p->outputs.number);
}

void exf_cross_check_before(exf_cross_check *check, exf_checked_part *p, exf_queue *q, const void *sums,
                            const exf_layer_sums_call *c)
{
    size_t slots = (size_t)p->n_tokens * (size_t)p->width;
    exf_cells_call cells = cells_of(check, p, c->ids);
    p->outputs.number = c->outputs.number;
    check->b->copy(q, output_at(p, 0), c->outputs.p, slots * (size_t)check->d_model * exf_number_bytes(c->outputs.number));
    check->b->copy(q, p->ids, c->ids, slots * sizeof *p->ids);
    check->b->copy(q, p->weights, c->weights, slots * sizeof *p->weights);
    p->device_ids = c->ids;
    check->b->gpu->layer_sums_cells_before(q, sums, &cells);
}

void exf_cross_check_before_common(exf_cross_check *check, exf_checked_part *p, exf_queue *q, const void *sums,
                                   const exf_common_input_call *c)
{
    uint64_t starts = (uint64_t)(check->n_experts - p->width + 1); /* first of the experts that are checked in the layer */
    size_t first = (size_t)exf_rng_below(starts, (uint64_t)p->sequence, RNG_STREAM, 1 << 20);
    size_t h = (size_t)check->d_model, row = (size_t)p->width * h;
    p->outputs.number = c->of->outputs.number;
    p->device_ids = check->experts + first;
    for (size_t t = 0; t < (size_t)p->n_tokens; t++) {
        size_t from = (((size_t)c->first + t) * (size_t)check->n_experts + first) * h;
        check->b->copy(q, output_at(p, t * row), exf_matrix_at(c->of->outputs, from).p, row * exf_number_bytes(p->outputs.number));
    }
    for (int e = 0; e < p->width; e++) p->ids[e] = (int32_t)first + e;
    exf_cells_call cells = cells_of(check, p, p->device_ids);
    check->b->gpu->layer_sums_cells_before(q, sums, &cells);
}

void exf_cross_check_after(exf_cross_check *check, exf_checked_part *p, exf_queue *q, const void *sums)
{
    exf_cells_call c = cells_of(check, p, p->device_ids);
    size_t values = (size_t)c.n_rows * (size_t)c.width * (size_t)c.width * EXF_CELL_VALUES;
    check->b->gpu->layer_sums_cells_added(q, sums, &c);
    check->b->copy(q, p->added, check->added, values * sizeof *p->added);
}

/* ---- the check on the host ------------------------------------------------------------------------------ */

static const char *const pair_values[EXF_CELL_VALUES] = {"dot", "target_sq", "source_sq", "dot0", "sq0", "count"};
static const char *const expert_values[EXF_CELL_VALUES] = {"norm_sum", "sq_sum", "route_weight_sum", "contribution_sum",
                                                           "energy_sum", "norm_count"};

/* What the CPU adds for a part: sums over the experts that its tokens have, renumbered. */
typedef struct {
    const exf_cross_check *check;
    const exf_checked_part *p;
    int layer, n;          /* n: experts */
    int32_t *ids, *number; /* ids: renumbered from 0 on; number: those of the model */
    double least_product;  /* the largest error of an inner product in float32 that no bound of the rows' norms covers: of each of
                            * H products, and of their sums, what is below 2^-126 may be rounded to 0 */
    int *small; /* [n] of common input: 1: float32 cannot make the expert's cosines, since a token's square is not far above that */
    exf_layer_statistics s;
} reference;

/* Gives the CPU's values of the cell of source a and target b, or of expert a if they are one, and what bounds their errors. */
static void values_of(const reference *r, size_t a, size_t b, double value[EXF_CELL_VALUES], double scale[EXF_CELL_VALUES])
{
    const exf_layer_statistics *s = &r->s;
    size_t n = (size_t)r->n, at = a * n + b, mirrored = b * n + a;
    int cosine = exf_cell_has_cosine(r->number[a], r->number[b]);
    const exf_exact *const pair[] = {&s->dot[at], &s->target_sq[at], &s->source_sq[at], cosine ? &s->cosine_sum[at] : &s->dot0[at],
                                     &s->sq0[at]};
    const exf_exact *const expert[] = {&s->norm_sum[a], &s->sq_sum[a], &s->route_weight_sum[a], &s->contribution_sum[a],
                                       &s->energy_sum[a]};
    for (int i = 0; i < EXF_CELL_VALUES - 1; i++) scale[i] = fabs(value[i] = exf_exact_value(a == b ? expert[i] : pair[i]));
    value[EXF_CELL_VALUES - 1] = (double)(a == b ? s->norm_count[a] : s->count[at]);
    scale[EXF_CELL_VALUES - 1] = 0;
    if (a == b) return;
    scale[0] += value[1] + value[2];
    scale[3] += cosine ? value[EXF_CELL_VALUES - 1] : value[4] + exf_exact_value(&s->sq0[mirrored]);
}

/* Returns what a cell's sum may be off beside a share of its size.  A term is rounded to the grid of exf_exact, on either side.
 * In common input the inner product of a token is off by d = least_product more, and a norm by sqrt(d), so that w <u,v> is off
 * by ||u|| d + sqrt(d) (|<u,v>| + d): over n tokens with energies that sum to e, at most d sqrt(n e) + sqrt(d) (e + n d). */
static double cell_floor(const reference *r, size_t a, size_t b, int is_cosine)
{
    double n = r->p->n_tokens, grid = n * 0x1p-96, d = r->least_product;
    if (!r->p->common_input) return grid;
    if (is_cosine) return r->small[a] || r->small[b] ? INFINITY : grid;
    double e = exf_exact_value(&r->s.sq0[a * (size_t)r->n + b]) + exf_exact_value(&r->s.sq0[b * (size_t)r->n + a]);
    return grid + n * d + d * sqrt(n * e) + sqrt(d) * (e + n * d);
}

static exf_code refuse(const reference *r, int32_t source, int32_t target, const char *what, double gpu, double cpu, exf_err *err)
{
    const exf_checked_part *p = r->p;
    char experts[48], tokens[64] = "";
    snprintf(experts, sizeof experts, source == target ? "expert %d" : "experts %d -> %d", (int)source, (int)target);
    if (p->position >= 0) snprintf(tokens, sizeof tokens, ", from position %d on", p->position);
    return exf_fail(err, EXF_DEVICE,
                    "layer %d, %s: for %d tokens of sequence %zu%s the GPU added %.9g to %s, the CPU makes %.9g of the same "
                    "outputs: the GPU, its memory or its code is wrong, so nothing is written; run again on another GPU, or "
                    "with --backend cpu",
                    r->layer, experts, p->n_tokens, p->sequence, tokens, gpu, what, cpu);
}

/* Compares a cell: what the GPU added for the a-th and b-th expert of a row. */
static exf_code compare_cell(const reference *r, int row, int a, int b, exf_err *err)
{
    const exf_checked_part *p = r->p;
    int slot = row * p->width, source = r->ids[slot + a], target = r->ids[slot + b], known = source >= 0 && target >= 0;
    const double *gpu = p->added + (size_t)((row * p->width + a) * p->width + b) * EXF_CELL_VALUES;
    double value[EXF_CELL_VALUES] = {0}, scale[EXF_CELL_VALUES] = {0};
    double bound = 0x1p-17 + (p->common_input ? 0x1p-23 * r->check->d_model : 0);
    if (known) values_of(r, (size_t)source, (size_t)target, value, scale);
    if (a == b && p->common_input) return EXF_OK; /* experts' own sums are of routed tokens */
    if (a != b && r->check->experts_only && !p->common_input) return EXF_OK;
    for (int i = 0; i < EXF_CELL_VALUES; i++) {
        int is_cosine = known && a != b && i == 3 && exf_cell_has_cosine(r->number[source], r->number[target]);
        int is_sum = known && i < EXF_CELL_VALUES - 1;
        double least = is_sum ? cell_floor(r, (size_t)source, (size_t)target, is_cosine) : 0;
        if (!(fabs(gpu[i] - value[i]) <= bound * scale[i] + least))
            return refuse(r, p->ids[slot + a], p->ids[slot + b],
                          a == b ? expert_values[i] : is_cosine ? "cosine_sum" : pair_values[i], gpu[i], value[i], err);
    }
    return EXF_OK;
}

static exf_code check_part(const exf_cross_check *check, const exf_checked_part *p, int layer, exf_err *err)
{
    size_t slots = (size_t)p->n_tokens * (size_t)p->width, h = (size_t)check->d_model, n = slots * h;
    int rows = p->common_input ? 1 : p->n_tokens;
    int width = p->width, d = check->d_model, tokens = p->n_tokens;
    size_t room = p->common_input ? exf_layer_sums_common_input_scratch(width, d) : (size_t)(width * width);
    reference r = {.check = check, .p = p, .layer = layer, .least_product = 0x1p-125 * d};
    float *outputs = NULL;
    double *scratch = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&r.ids, slots, sizeof *r.ids, "cross-check", err));
    EXF_TRY(exf_mem_new(&r.number, slots, sizeof *r.number, "cross-check", err));
    EXF_TRY(exf_mem_raw(&outputs, n, sizeof *outputs, "cross-check", err));
    (void)exf_dtype_to_f32(outputs, p->outputs.p, n, p->outputs.number == EXF_NUMBER_BF16 ? EXF_DT_BF16 : EXF_DT_F32);
    for (int i = 0; i < rows * p->width; i++) {
        int id = p->ids[i], at = 0;
        while (at < r.n && r.number[at] != id) at++;
        if (id >= 0 && at == r.n) r.number[r.n++] = id;
        r.ids[i] = id < 0 ? -1 : at;
    }
    EXF_TRY(exf_layer_statistics_new(&r.s, r.n, err));
    EXF_TRY(exf_mem_new(&scratch, room, sizeof *scratch, "cross-check", err));
    exf_layer_sums m = exf_layer_sums_of(&r.s);
    EXF_TRY(p->common_input ? exf_layer_sums_add_common_input_cpu(&m, width, d, tokens, outputs, check->weighting, scratch, err)
            : check->experts_only
                ? exf_layer_sums_add_experts_cpu(&m, width, d, tokens, outputs, r.ids, p->weights, err)
                : exf_layer_sums_add_cpu(&m, r.n, width, d, tokens, outputs, NULL, r.ids, p->weights, check->weighting, scratch,
                                         err));
    if (p->common_input) EXF_TRY(exf_mem_new(&r.small, (size_t)r.n, sizeof *r.small, "cross-check", err));
    for (size_t i = 0; p->common_input && i < slots; i++) {
        double sq = exf_dot(outputs + i * h, outputs + i * h, check->d_model);
        if (sq > 0 && sq < 0x1p19 * r.least_product) r.small[r.ids[i % (size_t)p->width]] = 1;
    }
    for (int row = 0; row < rows; row++)
        for (int a = 0; a < p->width; a++)
            for (int b = 0; b < p->width; b++) EXF_TRY(compare_cell(&r, row, a, b, err));
out:
    exf_layer_statistics_free(&r.s);
    exf_mem_free(scratch);
    exf_mem_free(outputs);
    exf_mem_free(r.small);
    exf_mem_free(r.number);
    exf_mem_free(r.ids);
    return rc;
}

static exf_code check_layer(void *self, exf_err *err)
{
    const exf_checked_layer *l = self;
    exf_code rc = l->routed.n_tokens ? check_part(l->of, &l->routed, l->number, err) : EXF_OK;
    return rc == EXF_OK && l->common.n_tokens ? check_part(l->of, &l->common, l->number, err) : rc;
}

exf_code exf_cross_check_layer(exf_cross_check *check, int layer, exf_err *err)
{
    exf_checked_layer *now = &check->layer[check->turn];
    if (!check->b) return EXF_OK;
    exf_code rc = exf_worker_wait(&check->worker, 0, err); /* the other layer's memory is free then */
    if (rc != EXF_OK) return rc;
    check->turn = !check->turn;
    check->layer[check->turn].routed.n_tokens = check->layer[check->turn].common.n_tokens = 0;
    now->number = layer;
    return exf_worker_give(&check->worker, &now->job, check_layer, now, err);
}

exf_code exf_cross_check_finish(exf_cross_check *check, exf_err *err)
{
    return check->b ? exf_worker_wait(&check->worker, 0, err) : EXF_OK;
}
