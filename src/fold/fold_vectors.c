/* fold_vectors.c - applies projectors that no router weight can express (docs/method.md, section 2), such
 * as the diagonal d * v and scalar-plus-low-rank S v + (v Q) C.  The kept routes run with their
 * own weights; the projected outputs of omitted routes are added to the routed output
 * (kernels/fold/correction.h).  A pair without vectors keeps its scalar. */
#include "fold/fold_rewriter_internal.h"

#include "base/mem.h"
#include "kernels/fold/fold_internal.h"

int exf_variant_wants_vectors(const exf_variant *v)
{
    return v && v->prefill == EXF_PREFILL_FOLD && v->prefill_projector->apply == EXF_APPLY_VECTORS;
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

/* Copies Q's columns as rows, layer by layer. */
static exf_code copy_basis(exf_fold_rewriter *f, const exf_projector_form *form, exf_err *err)
{
    size_t h = (size_t)f->t->shape.d_model, r = (size_t)form->rank, columns = (size_t)form->columns;
    exf_code rc = exf_mem_new(&f->basis, (size_t)f->t->n_layers * r, h * sizeof *f->basis, "basis", err);
    for (size_t l = 0; rc == EXF_OK && l < (size_t)f->t->n_layers; l++)
        for (size_t i = 0; i < h; i++)
            for (size_t k = 0; k < r; k++) f->basis[(l * r + k) * h + i] = form->basis[(l * h + i) * columns + k];
    return rc;
}

exf_code exf_fold_vectors_open(exf_fold_rewriter *f, exf_err *err)
{
    exf_projector_form form = {.scalar = 0};
    exf_code rc = f->v->prefill_projector->form(&form, f->t, f->v->prefill_lowrank, err);
    if (rc != EXF_OK) {
        exf_err_prefix(err, "variant \"%s\": ", f->v->name);
        return rc;
    }
    if (form.loss) f->prefill_loss = form.loss;
    f->vectors = (exf_correction_tables){.diagonal = form.diagonal, .c = form.c, .rank = form.rank, .scalar = form.scalar};
    if (form.rank) EXF_TRY(copy_basis(f, &form, err));
    rc = index_pairs(f, err);
out:
    return rc;
}

/* ---- a block ----------------------------------------------------------------------------- */

exf_correction_tables exf_fold_corrections_of(const exf_fold_rewriter *f, int index)
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

exf_correction_call exf_fold_correction_call(const exf_fold_rewriter *f, int n_tokens, int top_k, int d_model)
{
    const exf_fold_prefill_options *o = &f->v->prefill_options;
    return (exf_correction_call){
        .n_tokens = n_tokens, .top_k = top_k, .d_model = d_model, .by = o->rank, .keep = o->keep,
        .max_loss = exf_fold_max_loss(o->max_loss)};
}

exf_code exf_fold_vectors_correct(void *self, const exf_moe_block *b, float *routed, exf_err *err)
{
    const exf_fold_rewriter *f = self;
    int index = f->table_of[b->layer],
        n = exf_decode_schedule_prefill(f->schedule, f->schedule->batch->span[b->sequence].n_tokens) - b->position;
    (void)err;
    if (index < 0 || n <= 0) return EXF_OK;
    exf_correction_tables t = exf_fold_corrections_of(f, index);
    exf_correction_call c = exf_fold_correction_call(f, n < b->n_tokens ? n : b->n_tokens, b->top_k, b->d_model);
    c.outputs = exf_f32(b->expert_outputs);
    c.router_ids = b->router_ids;
    c.router_weights = b->router_weights;
    c.topk_ids = b->topk_ids;
    exf_correct_routes_cpu(routed, &t, &c);
    return EXF_OK;
}
