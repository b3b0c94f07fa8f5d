/* fold_vectors.c - applies projectors that no router weight can express (docs/method.md, section 2), such
 * as the diagonal d * v and scalar-plus-low-rank S v + (v Q) C.  The kept routes run with their
 * own weights; the projected outputs of omitted routes are added to the routed output, on the CPU or on a device
 * (kernels/fold/correction.h).  A pair without vectors keeps its scalar. */
#include "fold/fold_rewriter_internal.h"

#include "base/mem.h"
#include "kernels/fold/fold_internal.h"

#include <string.h>

int exf_variant_wants_vectors(const exf_variant *v)
{
    return v && v->prefill == EXF_PREFILL_FOLD && v->prefill_projector->apply == EXF_APPLY_VECTORS;
}

exf_code exf_fold_vectors_open(exf_fold_rewriter *f, exf_err *err)
{
    exf_projector_form form = {.scalar = 0};
    const exf_vectors *v = &f->t->vectors;
    size_t layers = (size_t)f->t->n_layers, e = (size_t)f->t->shape.n_experts, h = (size_t)f->t->shape.d_model;
    exf_code rc = f->v->prefill_projector->form(&form, f->t, f->v->prefill_lowrank, err);
    if (rc != EXF_OK) {
        exf_err_prefix(err, "variant \"%s\": ", f->v->name);
        return rc;
    }
    size_t r = (size_t)form.rank, columns = (size_t)form.columns;
    if (form.loss) f->prefill_loss = form.loss;
    f->vectors = (exf_correction_tables){.diagonal = form.diagonal, .c = form.c, .rank = form.rank, .scalar = form.scalar};
    if (r) EXF_TRY(exf_mem_new(&f->basis, layers * r, h * sizeof *f->basis, "basis", err));
    for (size_t l = 0; r && l < layers; l++) /* Q's columns as rows */
        for (size_t i = 0; i < h; i++)
            for (size_t k = 0; k < r; k++) f->basis[(l * r + k) * h + i] = form.basis[(l * h + i) * columns + k];
    EXF_TRY(exf_mem_new(&f->vector_of, layers * e * e, sizeof *f->vector_of, "index of vectors", err));
    for (size_t i = 0; i < layers * e * e; i++) f->vector_of[i] = -1;
    for (int64_t i = 0; i < v->n_pairs; i++)
        f->vector_of[((size_t)v->pair[3 * i] * e + (size_t)v->pair[3 * i + 1]) * e + (size_t)v->pair[3 * i + 2]] = (int32_t)i;
out:
    return rc;
}

/* ---- a block ----------------------------------------------------------------------------- */

/* Returns the vectors and scalars of layer `index` of the tables. */
static exf_correction_tables corrections_of(const exf_fold_rewriter *f, int index)
{
    exf_correction_tables t = f->vectors;
    exf_fold_tables scalars = exf_fold_rewriter_tables(f, index, f->prefill_coeff, f->prefill_loss);
    size_t cells = (size_t)scalars.n_experts * (size_t)scalars.n_experts;
    t.n_experts = scalars.n_experts;
    t.coeff = scalars.coeff;
    t.loss = scalars.loss;
    t.norms = scalars.norms;
    t.pair = f->vector_of + (size_t)index * cells;
    t.basis = f->basis ? f->basis + (size_t)index * (size_t)t.rank * (size_t)f->t->shape.d_model : NULL;
    return t;
}

/* Returns the part of a correction call that does not depend on the block. */
static exf_correction_call correction_call(const exf_fold_rewriter *f, int n_tokens, int top_k, int d_model)
{
    const exf_fold_prefill_options *o = &f->v->prefill_options;
    return (exf_correction_call){
        .n_tokens = n_tokens, .top_k = top_k, .d_model = d_model, .by = o->rank, .keep = o->keep,
        .max_loss = exf_fold_max_loss(o->max_loss)};
}

/* ---- device: sizes --------------------------------------------------------------------------------- */

/* Returns the number of pairs with vectors in the layers below `index`. */
static size_t pairs_below(const exf_vectors *v, int index)
{
    size_t from = 0, to = (size_t)v->n_pairs;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (v->pair[3 * middle] < index)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* Returns how many tokens are corrected at a time; the workspace has room for them. */
static size_t piece_of(const exf_fold_rewriter *f)
{
    enum { PIECE = 4096 };
    return f->schedule->batch->n_tokens < PIECE ? f->schedule->batch->n_tokens : PIECE;
}

/* Counts the bytes of each array in device memory. */
static void count_bytes(size_t bytes[EXF_CORRECT_ARRAYS], const exf_fold_rewriter *f)
{
    const exf_vectors *v = &f->t->vectors;
    size_t e = (size_t)f->t->shape.n_experts, row = (size_t)f->t->shape.d_model * sizeof(float);
    size_t pairs = 0, from = 0; /* pairs: of the layer that has most */
    for (size_t i = 1; i <= (size_t)v->n_pairs; i++) {
        if (i < (size_t)v->n_pairs && v->pair[3 * i] == v->pair[3 * from]) continue;
        if (i - from > pairs) pairs = i - from;
        from = i;
    }
    bytes[EXF_CORRECT_COEFF] = bytes[EXF_CORRECT_LOSS] = e * e * sizeof(float);
    bytes[EXF_CORRECT_NORMS] = e * sizeof(float);
    bytes[EXF_CORRECT_PAIR] = e * e * sizeof(int32_t);
    bytes[EXF_CORRECT_DIAGONAL] = f->vectors.diagonal ? pairs * row : 0;
    bytes[EXF_CORRECT_C] = pairs * (size_t)f->vectors.rank * row;
    bytes[EXF_CORRECT_BASIS] = (size_t)f->vectors.rank * row;
    bytes[EXF_CORRECT_PREFILL] = f->schedule->prefill_tokens ? f->schedule->batch->n_tokens : 0;
    bytes[EXF_CORRECT_WORKSPACE] = exf_correction_workspace((int)piece_of(f), f->a->top_k, f->vectors.rank);
}

uint64_t exf_fold_device_bytes(const exf_fold_rewriter *f)
{
    size_t bytes[EXF_CORRECT_ARRAYS];
    uint64_t all = 0;
    count_bytes(bytes, f);
    for (int i = 0; i < EXF_CORRECT_ARRAYS; i++) all += bytes[i];
    return all;
}

/* ---- device: memory -------------------------------------------------------------------------------- */

exf_code exf_fold_device_open(void *self, const struct exf_backend *b, exf_err *err)
{
    exf_fold_rewriter *f = self;
    size_t bytes[EXF_CORRECT_ARRAYS];
    exf_code rc = EXF_OK;
    exf_device_corrections_free(&f->on_device);
    f->on_device = (exf_device_corrections){.b = b, .index = -1};
    count_bytes(bytes, f);
    if (f->schedule->prefill_tokens) {
        EXF_TRY(exf_mem_new(&f->on_device.prefill, f->schedule->batch->n_tokens, 1, "prefill positions", err));
        exf_decode_schedule_mark(f->schedule, f->on_device.prefill);
    }
    for (int i = 0; i < EXF_CORRECT_ARRAYS; i++)
        if (bytes[i]) EXF_TRY(b->alloc(&f->on_device.array[i], bytes[i], 1, "vectors of a variant", err));
out:
    return rc;
}

void exf_device_corrections_free(exf_device_corrections *c)
{
    for (int i = 0; c->b && i < EXF_CORRECT_ARRAYS; i++) c->b->free(c->array[i]);
    exf_mem_free(c->prefill);
    memset(c, 0, sizeof *c);
}

/* ---- device: a layer's tables ------------------------------------------------------------------------ */

/* Queues the upload of the layer's tables; its pairs are n from `first` on. */
static void send_layer(const exf_fold_rewriter *f, exf_queue *q, const exf_correction_tables *t, size_t first, size_t n)
{
    const exf_device_corrections *c = &f->on_device;
    size_t e = (size_t)t->n_experts, h = (size_t)f->t->shape.d_model, row = h * sizeof(float), r = (size_t)t->rank;
    c->b->upload(q, c->array[EXF_CORRECT_COEFF], t->coeff, e * e * sizeof *t->coeff);
    c->b->upload(q, c->array[EXF_CORRECT_LOSS], t->loss, e * e * sizeof *t->loss);
    c->b->upload(q, c->array[EXF_CORRECT_NORMS], t->norms, e * sizeof *t->norms);
    c->b->upload(q, c->array[EXF_CORRECT_PAIR], t->pair, e * e * sizeof *t->pair);
    if (t->diagonal) c->b->upload(q, c->array[EXF_CORRECT_DIAGONAL], t->diagonal + first * h, n * row);
    if (r) c->b->upload(q, c->array[EXF_CORRECT_C], t->c + first * r * h, n * r * row);
    if (r) c->b->upload(q, c->array[EXF_CORRECT_BASIS], t->basis, r * row);
}

/* Returns the same tables with the device's addresses. */
static exf_correction_tables device_tables(const exf_fold_rewriter *f, const exf_correction_tables *host, size_t first)
{
    void *const *array = f->on_device.array;
    exf_correction_tables t = *host;
    t.coeff = array[EXF_CORRECT_COEFF];
    t.loss = array[EXF_CORRECT_LOSS];
    t.norms = array[EXF_CORRECT_NORMS];
    t.pair = array[EXF_CORRECT_PAIR];
    t.first = (int32_t)first;
    t.diagonal = array[EXF_CORRECT_DIAGONAL];
    t.c = array[EXF_CORRECT_C];
    t.basis = array[EXF_CORRECT_BASIS];
    return t;
}

/* Corrects tokens [at, at + n) of the block. */
static void correct_piece(const exf_fold_rewriter *f, const exf_moe_block *b, const exf_correction_tables *t, int at, int n,
                          float *routed)
{
    const unsigned char *prefill = f->on_device.array[EXF_CORRECT_PREFILL];
    size_t slot = (size_t)at * (size_t)b->top_k, h = (size_t)b->d_model;
    exf_matrix outputs = {b->expert_outputs, b->rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32};
    exf_correction_call c = correction_call(f, n, b->top_k, b->d_model);
    c.outputs = exf_matrix_at(outputs, slot * h);
    c.router_ids = b->router_ids + slot;
    c.router_weights = b->router_weights + slot;
    c.topk_ids = b->topk_ids + slot;
    c.prefill = prefill ? prefill + b->row + at : NULL;
    c.workspace = f->on_device.array[EXF_CORRECT_WORKSPACE];
    f->on_device.b->gpu->correct_routes(b->q, routed + (size_t)at * h, t, &c);
}

static void correct_on_host(const exf_fold_rewriter *f, const exf_moe_block *b, int index, float *routed)
{
    int n = exf_decode_schedule_prefill(f->schedule, f->schedule->batch->span[b->sequence].n_tokens) - b->position;
    if (n <= 0) return;
    exf_correction_tables t = corrections_of(f, index);
    exf_correction_call c = correction_call(f, n < b->n_tokens ? n : b->n_tokens, b->top_k, b->d_model);
    c.outputs = exf_f32(b->expert_outputs);
    c.router_ids = b->router_ids;
    c.router_weights = b->router_weights;
    c.topk_ids = b->topk_ids;
    exf_correct_routes_cpu(routed, &t, &c);
}

exf_code exf_fold_vectors_correct(void *self, const exf_moe_block *b, float *routed, exf_err *err)
{
    exf_fold_rewriter *f = self;
    int index = f->table_of[b->layer], piece = (int)piece_of(f);
    (void)err;
    if (index < 0) return EXF_OK;
    if (!b->q) {
        correct_on_host(f, b, index, routed);
        return EXF_OK;
    }
    exf_correction_tables host = corrections_of(f, index);
    size_t first = pairs_below(&f->t->vectors, index);
    exf_correction_tables device = device_tables(f, &host, first);
    exf_device_corrections *c = &f->on_device; /* uploads what the block needs, after the work of the previous block's queue */
    if (!c->q && c->prefill) c->b->upload(b->q, c->array[EXF_CORRECT_PREFILL], c->prefill, b->batch->n_tokens);
    if (c->q && c->q != b->q) c->b->gpu->wait_for(b->q, c->q);
    if (c->index != index) send_layer(f, b->q, &host, first, pairs_below(&f->t->vectors, index + 1) - first);
    c->q = b->q;
    c->index = index;
    for (int at = 0; at < b->n_tokens; at += piece)
        correct_piece(f, b, &device, at, b->n_tokens - at < piece ? b->n_tokens - at : piece, routed);
    return EXF_OK;
}
