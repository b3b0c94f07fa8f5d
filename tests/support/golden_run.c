/* golden_run.c - see golden_run.h. */
#include "tests/support/golden_run.h"

#include "base/mem.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* n rows of `width` 4-byte elements into their place. */
static void keep(void *array, size_t row, size_t n, size_t width, const void *data)
{
    memcpy((char *)array + row * width * 4, data, n * width * 4);
}

static exf_code begin_layer(void *self, const exf_moment *m, exf_err *err)
{
    golden_seen *s = self;
    int layer = m->layer;
    size_t k = (size_t)s->top_k, h = (size_t)s->d_model;
    (void)err;
    if (m->at != EXF_AT_LAYER_BEGIN) return EXF_OK;
    ck_assert_int_lt(layer, GOLDEN_LAYERS);
    s->moe_input[layer] = test_memory(s->n_rows * h, 4);
    s->expert_outputs[layer] = test_memory(s->n_rows * k * h, 4);
    s->routed[layer] = test_memory(s->n_rows * h, 4);
    s->block[layer] = test_memory(s->n_rows * h, 4);
    s->weights[layer] = test_memory(s->n_rows * k, 4);
    s->ids[layer] = test_memory(s->n_rows * k, 4);
    return EXF_OK;
}

static exf_code block(void *self, const exf_moe_block *b, exf_err *err)
{
    golden_seen *s = self;
    size_t k = (size_t)b->top_k, h = (size_t)b->d_model, n = (size_t)b->n_tokens;
    (void)err;
    keep(s->moe_input[b->layer], b->row, n, h, b->moe_input);
    keep(s->expert_outputs[b->layer], b->row, n, k * h, b->expert_outputs);
    keep(s->routed[b->layer], b->row, n, h, b->routed_output);
    keep(s->block[b->layer], b->row, n, h, b->block_output);
    keep(s->weights[b->layer], b->row, n, k, b->topk_weights);
    keep(s->ids[b->layer], b->row, n, k, b->topk_ids);
    return EXF_OK;
}

static exf_code logits(void *self, const exf_logits_block *b, exf_err *err)
{
    golden_seen *s = self;
    (void)err;
    keep(s->logits, b->row, (size_t)b->n_tokens, (size_t)b->vocab, b->logits);
    return EXF_OK;
}

exf_observer golden_observer(golden_seen *seen, const exf_model *m, size_t n_rows)
{
    memset(seen, 0, sizeof *seen);
    seen->n_rows = n_rows;
    seen->top_k = m->arch.top_k;
    seen->d_model = m->arch.d_model;
    seen->vocab = m->arch.vocab;
    exf_log_setup("check", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    return (exf_observer){.self = seen, .at = begin_layer, .block = block, .logits = logits};
}

void golden_forward(golden_seen *seen, const exf_model *m, const exf_batch *batch, const exf_backend *backend, exf_compute compute,
                    int threads)
{
    exf_err err = {.code = EXF_OK};
    exf_observer observer = golden_observer(seen, m, batch->n_tokens);
    exf_lane lane = {.observer = &observer};
    exf_forward_options options = {.backend = backend, .compute = compute, .threads = threads};
    exf_forward_report report;
    seen->logits = test_memory(batch->n_tokens * (size_t)m->arch.vocab, 4);
    ck_ok(exf_forward(m, batch, &lane, 1, &options, &report, &err), err);
}

void golden_free(golden_seen *seen)
{
    for (int l = 0; l < GOLDEN_LAYERS; l++) {
        exf_mem_free(seen->moe_input[l]);
        exf_mem_free(seen->expert_outputs[l]);
        exf_mem_free(seen->routed[l]);
        exf_mem_free(seen->block[l]);
        exf_mem_free(seen->weights[l]);
        exf_mem_free(seen->ids[l]);
    }
    exf_mem_free(seen->logits);
    memset(seen, 0, sizeof *seen);
}

void *golden_tensor(const exf_st_file *f, const char *name, size_t *n)
{
    exf_err err;
    const exf_st_tensor *t = exf_st_find(f, name);
    ck_assert_msg(t != NULL, "%s lacks %s", exf_st_path(f), name);
    *n = (size_t)exf_tensor_count(&t->view);
    void *data = test_memory(*n, 4);
    ck_ok(exf_st_read(f, t, 0, data, *n * 4, &err), err);
    return data;
}

typedef struct { double difference, size; } spread;

static void spread_row(spread *d, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        d->difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        d->size += (double)b[i] * (double)b[i];
    }
}

double golden_distance(const float *a, const float *b, size_t n)
{
    spread d = {0, 0};
    spread_row(&d, a, b, n);
    return sqrt(d.difference / d.size);
}

/* ---- the goldens ----------------------------------------------------------------- */

const char *const golden_families[] = {
    "qwen3_moe",   "glm4_moe",    "glm4_moe_qknorm_groups", "deepseek_v2",        "deepseek_v2_qlora_groups",
    "qwen3_5_moe", "deepseek_v4", "qwen3_moe_fp8",          "deepseek_v4_fp8_fp4",
    "minimax_m2",  "qwen3_next",  "mixtral",                "olmoe",              "qwen2_moe",
    "deepseek_v3", "gpt_oss", "gpt_oss_mxfp4", "glm4_moe_lite", "dots1", "glm4v_moe", "qwen3_vl_moe",
    "qwen3_omni_moe", "solar_open", "mistral4", "deepseek_v32", "glm_moe_dsa",
    "kimi_k25", "hy_v3", "ernie4_5_moe", "granitemoe",
    "gemma4"};

int golden_n_families(void)
{
    return (int)(sizeof golden_families / sizeof *golden_families);
}

void golden_open(golden_case *c, const char *family)
{
    char path[256];
    exf_err err;
    size_t n;
    c->family = family;
    snprintf(path, sizeof path, "tests/golden/%s", family);
    ck_ok(exf_model_open(&c->model, path, &err), err);
    snprintf(path, sizeof path, "tests/golden/%s/golden.safetensors", family);
    ck_ok(exf_st_open(&c->answers, path, &err), err);
    const exf_st_tensor *ids = exf_st_find(c->answers, "input_ids");
    c->ids = golden_tensor(c->answers, "input_ids", &n);
    size_t rows = (size_t)ids->view.shape[0], length = (size_t)ids->view.shape[1];
    for (size_t i = 0; i < rows; i++) c->span[i] = (exf_span){i * length, (int)length};
    c->batch = (exf_batch){c->ids, c->span, rows, n, (int)length};
}

void golden_close(golden_case *c)
{
    exf_model_close(c->model);
    exf_st_close(c->answers);
    exf_mem_free(c->ids);
}

static void compare(const golden_case *c, const char *name, const float *seen, double limit)
{
    size_t n;
    float *want = golden_tensor(c->answers, name, &n);
    double d = golden_distance(seen, want, n);
    ck_assert_msg(d <= limit, "%s: %s is %.2e from the golden, %.0f %% of the allowed %.0e", c->family, name, d, 100 * d / limit,
                  limit);
    exf_mem_free(want);
}

static float *layer_tensor(const golden_case *c, int layer, const char *part)
{
    char name[64];
    size_t n;
    snprintf(name, sizeof name, "layers.%d.%s", layer, part);
    return golden_tensor(c->answers, name, &n);
}

static void compare_ids(const golden_case *c, int layer, const golden_seen *s, float tie)
{
    size_t n = s->n_rows * (size_t)s->top_k;
    int32_t *want = (int32_t *)layer_tensor(c, layer, "topk_ids");
    float *weight = layer_tensor(c, layer, "topk_weights");
    for (size_t i = 0; i < n; i++)
        if (s->ids[layer][i] != want[i])
            ck_assert_msg(fabsf(s->weights[layer][i] - weight[i]) < tie, "%s: layer %d, slot %zu: expert %d, expected %d",
                          c->family, layer, i, (int)s->ids[layer][i], (int)want[i]);
    exf_mem_free(want);
    exf_mem_free(weight);
}

void golden_compare(const golden_case *c, const golden_seen *s, double limit, float tie)
{
    for (int l = 0; l < c->model->arch.n_layers; l++) {
        const struct { const char *part; const float *seen; } parts[] = {
            {"moe_input", s->moe_input[l]}, {"topk_weights", s->weights[l]}, {"expert_outputs", s->expert_outputs[l]},
            {"routed_output", s->routed[l]}, {"block_output", s->block[l]},
        };
        if (!c->model->arch.is_moe[l]) continue;
        compare_ids(c, l, s, tie);
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            char name[64];
            snprintf(name, sizeof name, "layers.%d.%s", l, parts[i].part);
            compare(c, name, parts[i].seen, limit);
        }
    }
    compare(c, "logits", s->logits, limit);
}

/* ---- against a forward that rounds ------------------------------------------------- */

static int slot_of(const int32_t *ids, int k, int32_t id)
{
    for (int i = 0; i < k; i++)
        if (ids[i] == id) return i;
    return -1;
}

static int same_experts(const int32_t *a, const int32_t *b, int k)
{
    for (int i = 0; i < k; i++)
        if (slot_of(a, k, b[i]) < 0) return 0;
    return 1;
}

/* One MoE layer: drops the tokens that part from the reference here from `with`. */
static void compare_rounded_layer(const golden_case *c, const golden_seen *s, int layer, char *with, spread *experts, spread *block)
{
    size_t k = (size_t)s->top_k, h = (size_t)s->d_model;
    int32_t *ids = (int32_t *)layer_tensor(c, layer, "topk_ids");
    float *outputs = layer_tensor(c, layer, "expert_outputs"), *sum = layer_tensor(c, layer, "block_output");
    for (size_t r = 0; r < s->n_rows; r++) {
        const int32_t *seen = s->ids[layer] + r * k;
        with[r] = with[r] && same_experts(seen, ids + r * k, s->top_k);
        if (!with[r]) continue;
        spread_row(block, s->block[layer] + r * h, sum + r * h, h);
        for (size_t i = 0; i < k; i++) {
            size_t at = r * k + (size_t)slot_of(seen, s->top_k, ids[r * k + i]);
            spread_row(experts, s->expert_outputs[layer] + at * h, outputs + (r * k + i) * h, h);
        }
    }
    exf_mem_free(ids);
    exf_mem_free(outputs);
    exf_mem_free(sum);
}

void golden_compare_rounded(const golden_case *c, const golden_seen *s, double limit, double agreement)
{
    spread experts = {0, 0}, block = {0, 0}, logit = {0, 0};
    size_t n, same = 0, v = (size_t)s->vocab;
    char *with = test_memory(s->n_rows, 4);
    float *want = golden_tensor(c->answers, "logits", &n);
    memset(with, 1, s->n_rows);
    for (int l = 0; l < c->model->arch.n_layers; l++)
        if (c->model->arch.is_moe[l]) compare_rounded_layer(c, s, l, with, &experts, &block);
    for (size_t r = 0; r < s->n_rows; r++) {
        if (with[r]) spread_row(&logit, s->logits + r * v, want + r * v, v);
        same += (size_t)with[r];
    }
    double share = (double)same / (double)s->n_rows;
    double found[] = {sqrt(experts.difference / experts.size), sqrt(block.difference / block.size),
                      sqrt(logit.difference / logit.size)};
    printf("%-26s tokens routed as the reference %5.1f %%, expert outputs %.1e, block outputs %.1e, logits %.1e\n", c->family,
           100 * share, found[0], found[1], found[2]);
    ck_assert_msg(share >= agreement, "%s: %.1f %% of the tokens routed as the reference, expected %.1f %%", c->family, 100 * share,
                  100 * agreement);
    for (int i = 0; i < 3; i++)
        ck_assert_msg(found[i] <= limit, "%s: %.2e from the golden, allowed %.0e", c->family, found[i], limit);
    exf_mem_free(with);
    exf_mem_free(want);
}
