/* fuzz_config.c - libFuzzer target: any bytes are understood as a model's config.json,
 * whose planned sizes then obey their bounds, or refused once with a message.
 *   make fuzz FUZZ=config SECONDS=60 */
#include "model/model.h"
#include "tests/fuzz/scratch.h"

static void look_at(const exf_model *m)
{
    const exf_architecture *a = &m->arch;
    uint64_t sum = exf_model_layer_bytes(m, -1);
    int n_moe = 0;
    must(a->n_layers >= 1 && a->n_layers <= EXF_MAX_LAYERS && a->n_experts >= 2 && a->n_experts <= EXF_MAX_EXPERTS);
    must(a->top_k >= 1 && a->top_k <= EXF_MAX_TOP_K && a->top_k <= a->n_experts && a->d_model >= 1);
    for (int d = 0; d < EXF_DIM_COUNT; d++) must(a->dim[d] >= 0);
    for (int l = 0; l < a->n_layers; l++) {
        must(a->mixer[l] < EXF_MIXER_KINDS);
        n_moe += a->is_moe[l] != 0;
        sum += exf_model_layer_bytes(m, l);
    }
    must(n_moe == a->n_moe_layers && n_moe >= 1 && sum == exf_model_bytes(m));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    exf_err err = {EXF_OK, ""};
    exf_model *m;
    put_input("config.json", bytes, size);
    exf_code rc = exf_model_open_part(&m, scratch_dir, EXF_MODEL_CONFIG, &err);
    must(rc == EXF_OK || ((rc == EXF_USAGE || rc == EXF_MODEL || rc == EXF_FORMAT) && !m && err.code == rc && err.msg[0]));
    if (rc == EXF_OK) look_at(m);
    exf_model_close(m);
    return 0;
}
