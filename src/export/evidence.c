/* evidence.c - see evidence.h. */
#include "export/evidence.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static int rising_counts(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int rising_losses(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float median_loss(float *loss, size_t n)
{
    if (n == 0) return 0;
    qsort(loss, n, sizeof *loss, rising_losses);
    return loss[(n - 1) / 2];
}

typedef struct {
    uint64_t *tokens; /* of observed pairs */
    float *loss, *best;
    size_t n_best;
} samples;

static void collect(samples *x, exf_evidence *c, const exf_tables *t, size_t layer)
{
    size_t e = (size_t)t->shape.n_experts;
    for (size_t s = 0; s < e; s++) {
        const float *loss = t->loss + (layer * e + s) * e;
        const uint64_t *count = t->count + (layer * e + s) * e;
        float best = EXF_LOSS_NEVER;
        for (size_t d = 0; d < e; d++) {
            if (d == s || loss[d] >= EXF_LOSS_NEVER) continue;
            if (loss[d] < best) best = loss[d];
            x->tokens[c->observed] = count[d];
            x->loss[c->observed++] = loss[d];
        }
        if (best < EXF_LOSS_NEVER) x->best[x->n_best++] = best;
        c->cold += t->expert_count[layer * e + s] == 0;
    }
}

exf_code exf_evidence_of_layer(exf_evidence *c, const exf_tables *t, int layer, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts;
    samples x = {.n_best = 0};
    exf_code rc;
    memset(c, 0, sizeof *c);
    c->pairs = e * e - e;
    EXF_TRY(exf_mem_new(&x.tokens, c->pairs, sizeof *x.tokens, "coverage", err));
    EXF_TRY(exf_mem_new(&x.loss, c->pairs, sizeof *x.loss, "coverage", err));
    EXF_TRY(exf_mem_new(&x.best, e, sizeof *x.best, "coverage", err));
    collect(&x, c, t, (size_t)layer);
    qsort(x.tokens, c->observed, sizeof *x.tokens, rising_counts);
    c->tokens = c->observed ? x.tokens[(c->observed - 1) / 2] : 0;
    c->loss = median_loss(x.loss, c->observed);
    c->best = median_loss(x.best, x.n_best);
out:
    exf_mem_free(x.tokens);
    exf_mem_free(x.loss);
    exf_mem_free(x.best);
    return rc;
}

/* ---- snippet ----------------------------------------------------------------------------------- */

/* Of tables.h5, which is no export. */
static const exf_snippet hdf5 = {
    "hdf5", "HDF5, with h5py",
    "import h5py\n"
    "\n"
    "with h5py.File(\"tables.h5\") as f:\n"
    "    family = f[\"provenance\"].attrs[\"model.family\"].decode()  # text attributes are bytes\n"
    "    coeff, loss = f[\"coeff\"][:], f[\"loss\"][:]\n"
    "target = loss[0, 3].argmin()\n"
    "print(f\"first layer: expert 3 is about {coeff[0, 3, target]:.4f} times expert {target}\")\n"};

const exf_snippet *exf_snippet_find(const char *target)
{
    const exf_writer *w = exf_writer_find(target);
    if (w) return w->load.code ? &w->load : NULL;
    return strcmp(target, "hdf5") == 0 ? &hdf5 : NULL;
}
