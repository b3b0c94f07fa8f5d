/* fold_vectors.c - the projectors that no router weight can express (method, section 2):
 * diagonal d * v and scalar-plus-low-rank S v + (v Q) C.  The kept routes run with their
 * own weights; what the omitted ones would have said is added to the routed output.
 *
 * The diagonal chooses targets by its own loss, low-rank by the scalar's.  A pair
 * without vectors keeps its scalar. */
#include "fold/fold_rewriter_internal.h"

#include "base/mem.h"
#include "kernels/fold/fold_cpu.h"

#include <string.h>

int exf_variant_wants_vectors(const exf_variant *v)
{
    return v && v->prefill == EXF_PREFILL_FOLD && (v->prefill_projector == EXF_PROJECT_DIAGONAL || v->prefill_projector == EXF_PROJECT_LOWRANK);
}

static exf_code index_pairs(exf_fold_rewriter *f, exf_err *err)
{
    size_t e = (size_t)f->t->shape.n_experts, cells = (size_t)f->t->n_layers * e * e;
    const int32_t *pair = f->t->vectors.pair;
    exf_code rc = exf_mem_new(&f->vector_of, cells, sizeof *f->vector_of, "index of vectors", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < cells; i++) f->vector_of[i] = -1;
    for (int64_t i = 0; i < f->t->vectors.n_pairs; i++)
        f->vector_of[((size_t)pair[3 * i] * e + (size_t)pair[3 * i + 1]) * e + (size_t)pair[3 * i + 2]] = (int32_t)i;
    return EXF_OK;
}

exf_code exf_fold_vectors_open(exf_fold_rewriter *f, exf_err *err)
{
    const exf_vectors *vectors = &f->t->vectors;
    if (f->v->prefill_projector == EXF_PROJECT_DIAGONAL) {
        if (!vectors->diagonal || !vectors->diagonal_loss)
            return exf_fail(err, EXF_USAGE, "variant \"%s\": the tables hold no diagonal; add diagonal to calibrate.projectors and calibrate again",
                            f->v->name);
        f->prefill_loss = vectors->diagonal_loss;
        return index_pairs(f, err);
    }
    for (int i = 0; i < vectors->n_lowrank; i++)
        if (vectors->lowrank[i].rank == f->v->prefill_lowrank) f->lowrank = &vectors->lowrank[i];
    if (!f->lowrank)
        return exf_fail(err, EXF_USAGE, "variant \"%s\": the tables hold no low-rank projector of rank %d; add lowrank to calibrate.projectors and %d to "
                        "calibrate.ranks, and calibrate again", f->v->name, f->v->prefill_lowrank, f->v->prefill_lowrank);
    return index_pairs(f, err);
}

/* ---- one omitted route ------------------------------------------------------------- */

typedef struct {
    const exf_fold_rewriter *f;
    int index, h;
    size_t e;
    exf_fold_tables tables;
} call;

static void add_scaled(float *routed, const float *v, float by, int h)
{
    for (int i = 0; i < h; i++) routed[i] += by * v[i];
}

static void add_diagonal(const call *c, float *routed, const float *v, float w, int32_t pair)
{
    const float *d = c->f->t->vectors.diagonal + (size_t)pair * (size_t)c->h;
    for (int i = 0; i < c->h; i++) routed[i] += w * (d[i] * v[i]);
}

static void add_lowrank(const call *c, float *routed, const float *v, float w, int32_t pair)
{
    const exf_vectors *vectors = &c->f->t->vectors;
    int rank = c->f->lowrank->rank;
    const float *q = vectors->basis + (size_t)c->index * (size_t)c->h * (size_t)vectors->basis_rank;
    const float *m = c->f->lowrank->c + (size_t)pair * (size_t)rank * (size_t)c->h;
    for (int k = 0; k < rank; k++) {
        double z = 0;
        for (int i = 0; i < c->h; i++) z += (double)v[i] * (double)q[(size_t)i * (size_t)vectors->basis_rank + (size_t)k];
        add_scaled(routed, m + (size_t)k * (size_t)c->h, w * (float)z, c->h);
    }
}

static void add_omitted(const call *c, float *routed, const float *v, float w, int source, int target)
{
    size_t cell = (size_t)source * c->e + (size_t)target;
    int32_t pair = c->f->vector_of[(size_t)c->index * c->e * c->e + cell];
    int diagonal = c->f->v->prefill_projector == EXF_PROJECT_DIAGONAL;
    if (pair < 0 || !diagonal) add_scaled(routed, v, w * c->tables.coeff[cell], c->h);
    if (pair >= 0 && diagonal) add_diagonal(c, routed, v, w, pair);
    if (pair >= 0 && !diagonal) add_lowrank(c, routed, v, w, pair);
}

/* Kept routes stand in the block's first slots, in the order of rank (keep_ranked). */
static void correct_token(const call *c, const exf_moe_block *b, int token, float *routed)
{
    exf_fold_ranked r;
    exf_fold_routes in = {(void *)(uintptr_t)b->router_ids, (void *)(uintptr_t)b->router_weights, EXF_FOLD_I32, EXF_FOLD_F32, b->n_tokens, b->top_k};
    size_t slots = (size_t)token * (size_t)b->top_k;
    exf_fold_rank_row(&r, &in, token, &c->tables, c->f->v->prefill_options.rank);
    int kept = r.n < c->f->v->prefill_options.keep ? r.n : c->f->v->prefill_options.keep;
    for (int j = kept; j < r.n; j++) {
        int to = exf_fold_target(&r, kept, c->tables.loss + (size_t)r.id[j] * c->e, c->f->v->prefill_options.max_loss);
        if (to >= 0) add_omitted(c, routed, b->expert_outputs + (slots + (size_t)to) * (size_t)c->h, r.w[j], r.id[j], r.id[to]);
    }
}

exf_code exf_fold_vectors_correct(void *self, const exf_moe_block *b, float *routed, exf_err *err)
{
    const exf_fold_rewriter *f = self;
    call c = {.f = f, .index = f->table_of[b->layer], .h = b->d_model, .e = (size_t)b->n_experts};
    int n = exf_decode_schedule_prefill(f->schedule, f->schedule->batch->span[b->sequence].n_tokens) - b->position;
    (void)err;
    if (c.index < 0) return EXF_OK;
    c.tables = exf_fold_rewriter_tables(f, c.index, f->prefill_coeff, f->prefill_loss);
    for (int t = 0; t < b->n_tokens && t < n; t++) correct_token(&c, b, t, routed + (size_t)t * (size_t)c.h);
    return EXF_OK;
}
