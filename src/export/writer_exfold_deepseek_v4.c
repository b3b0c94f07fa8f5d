/* writer_exfold_deepseek_v4.c - the file that the public vLLM and SGLang plugins
 * for DeepSeek-V4-Flash load; a dict of F32 tensors:
 *
 *   prefill_coeff, prefill_selection_loss, prefill_confidence_loss,
 *   decode_coeff, decode_loss [43, 256, 256], norms [43, 256]
 *
 * All losses are by Frobenius norm (docs/method.md, section 6).  The selection losses choose
 * targets of prefill, the decode losses those of decode, 1e30 says that a pair cannot be; of
 * the confidence losses a runtime takes 1 - loss, clamped to [0, 1], so that the same 1e30
 * means none; their diagonal is 0.  The plugins' validator refuses losses as degenerate
 * (refuse_degenerate), and so does this writer.
 *
 * Layers 0 to 2 choose experts by token id.  SGLang's plugin leaves them alone,
 * vLLM's folds them like the others: what the tables hold of them is written.  Layers
 * that the tables lack are without evidence, which the validator allows and
 * covers_deepseek_v4() refuses. */
#include "export/writer_internal.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 43, HASH_LAYERS = 3, EXPERTS = 256, MAX_TOP_K = 8 /* of the plugins' kernels */ };

static exf_code serves_deepseek_v4(const exf_export_model *m, exf_err *err)
{
    if (strcmp(m->family, "deepseek_v4") != 0)
        return exf_fail(err, EXF_MODEL, "its plugins serve deepseek_v4, the model is of the family %s", m->family);
    if (m->n_layers != LAYERS || m->n_experts != EXPERTS)
        return exf_fail(err, EXF_MODEL, "its plugins are made for %d layers of %d experts, the model has %lld of %lld", LAYERS,
                        EXPERTS, (long long)m->n_layers, (long long)m->n_experts);
    if (m->top_k > MAX_TOP_K)
        return exf_fail(err, EXF_MODEL, "its plugins take at most %d experts per token, the model has %lld", MAX_TOP_K,
                        (long long)m->top_k);
    return EXF_OK;
}

static exf_code write_deepseek_v4(const exf_export *x, const char *path, int force, exf_err *err)
{
    exf_runtime_tables r;
    float *confidence = NULL;
    exf_code rc;
    EXF_TRY(exf_runtime_tables_make(&r, x->tables, x->tables->frobenius, err));
    size_t e = (size_t)r.n_experts, rows = (size_t)r.n_layers * e;
    EXF_TRY(exf_mem_new(&confidence, rows * e, sizeof *confidence, "confidence losses", err));
    memcpy(confidence, r.loss, rows * e * sizeof *confidence);
    for (size_t i = 0; i < rows; i++) confidence[i * e + i % e] = 0;
    exf_pt item[] = {
        exf_runtime_array("prefill_coeff", &r, r.coeff),
        exf_runtime_array("prefill_selection_loss", &r, r.loss),
        exf_runtime_array("prefill_confidence_loss", &r, confidence),
        exf_runtime_array("decode_coeff", &r, r.coeff),
        exf_runtime_array("decode_loss", &r, r.loss),
        exf_runtime_array("norms", &r, r.norms),
    };
    EXF_TRY(exf_runtime_write(path, force, &(exf_pt){.kind = EXF_PT_DICT, .item = item, .n = sizeof item / sizeof *item}, x, err));
out:
    exf_mem_free(confidence);
    exf_runtime_tables_free(&r);
    return rc;
}

/* ---- the validator's rule -------------------------------------------------------- */

static const double degenerate = 0.9; /* of the median */

static int rising(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Refuses (EXF_THRESHOLD) losses that the plugin's validator calls degenerate: where, in some
 * layer, the median over experts of the loss to the best target is 0.9 or more
 * (of an even number the lower of the two in the middle; experts without any
 * target are left out), or where no layer has a pair. */
static exf_code refuse_degenerate(const exf_tables *t, const float *loss, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts;
    float *best = NULL;
    int any = 0;
    exf_code rc = exf_mem_new(&best, e, sizeof *best, "best losses", err);
    for (size_t l = 0; rc == EXF_OK && l < (size_t)t->n_layers; l++) {
        size_t n = 0; /* experts that have a target, whose losses to the best one are in best */
        for (size_t s = 0; s < e; s++) {
            float least = EXF_NO_PAIR;
            for (size_t to = 0; to < e; to++)
                if (to != s && loss[(l * e + s) * e + to] < least) least = loss[(l * e + s) * e + to];
            if (least < EXF_NO_PAIR) best[n++] = least;
        }
        if (n == 0) continue;
        any = 1;
        qsort(best, n, sizeof *best, rising);
        double median = (double)best[(n - 1) / 2];
        if (median >= degenerate)
            rc = exf_fail(err, EXF_THRESHOLD,
                          "layer %d: half of its experts lose %.4g of their output or more with the best target, the runtime's "
                          "validator refuses %g and more as degenerate; the experts are nearly orthogonal, so that folding one "
                          "into another replaces little of it, on whatever data; keep all experts of this model, or validate "
                          "P:projector=joint for a runtime of your own",
                          (int)t->layer_number[l], median, degenerate);
    }
    if (rc == EXF_OK && !any)
        rc = exf_fail(err, EXF_THRESHOLD, "no layer has a pair of experts with evidence: there is nothing that could be folded");
    exf_mem_free(best);
    return rc;
}

static exf_code accepts_deepseek_v4(const exf_tables *t, exf_err *err)
{
    if (!t->frobenius)
        return exf_fail(err, EXF_USAGE,
                        "its plugins fold by Frobenius losses, which the tables lack: they came with version 4; solve the "
                        "statistics again (exfold-solve)");
    return refuse_degenerate(t, t->frobenius, err);
}

static exf_code covers_deepseek_v4(const exf_tables *t, int by_token, exf_err *err)
{
    return exf_writer_refuse_unobserved(t, by_token ? 0 : HASH_LAYERS, LAYERS, err);
}

const exf_writer exf_writer_exfold_deepseek_v4 = {
    .name = "exfold-deepseek-v4",
    .file = "exfold-deepseek-v4.pt",
    .about = "for the public vLLM and SGLang plugins (V4-Flash)",
    .load = {"pt_deepseek_v4", "The plugin's file, with PyTorch",
             "import torch\n"
             "\n"
             "tables = torch.load(\"exfold-deepseek-v4.pt\", map_location=\"cpu\", weights_only=True)\n"
             "coeff, loss = tables[\"decode_coeff\"], tables[\"decode_loss\"]  # float32 [43, 256, 256]\n"
             "target = loss[42, 3].argmin()\n"
             "print(f\"last layer: expert 3 is about {coeff[42, 3, target]:.4f} times expert {target}\")\n"},
    .of_plugin = 1,
    .serves = serves_deepseek_v4,
    .accepts = accepts_deepseek_v4,
    .covers = covers_deepseek_v4,
    .write = write_deepseek_v4,
};
