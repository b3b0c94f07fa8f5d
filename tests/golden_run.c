/* golden_run.c - see golden_run.h. */
#include "tests/golden_run.h"

#include "base/mem.h"
#include "tests/fixtures.h"

#include <math.h>
#include <string.h>

static void *fresh(size_t n)
{
    void *p;
    exf_err err;
    ck_ok(exf_mem_new(&p, n, 4, "golden", &err), err);
    return p;
}

/* n rows of `width` 4-byte elements into their place. */
static void keep(void *array, size_t row, size_t n, size_t width, const void *data)
{
    memcpy((char *)array + row * width * 4, data, n * width * 4);
}

static exf_code layer_begin(void *self, int layer, int moe_index, exf_err *err)
{
    golden_seen *s = self;
    size_t k = (size_t)s->top_k, h = (size_t)s->d_model;
    (void)moe_index;
    (void)err;
    ck_assert_int_lt(layer, GOLDEN_LAYERS);
    s->moe_input[layer] = fresh(s->n_rows * h);
    s->expert_outputs[layer] = fresh(s->n_rows * k * h);
    s->routed[layer] = fresh(s->n_rows * h);
    s->block[layer] = fresh(s->n_rows * h);
    s->weights[layer] = fresh(s->n_rows * k);
    s->ids[layer] = fresh(s->n_rows * k);
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

void golden_forward(golden_seen *seen, const exf_model *m, const exf_batch *batch, int threads)
{
    exf_err err = {.code = EXF_OK};
    exf_observer observer = {.self = seen, .layer_begin = layer_begin, .block = block, .logits = logits};
    exf_lane lane = {.observer = &observer};
    exf_forward_options options = {.threads = threads};
    exf_forward_report report;
    memset(seen, 0, sizeof *seen);
    seen->n_rows = batch->n_tokens;
    seen->top_k = m->arch.top_k;
    seen->d_model = m->arch.d_model;
    seen->vocab = m->arch.vocab;
    seen->logits = fresh(batch->n_tokens * (size_t)m->arch.vocab);
    exf_log_setup("check", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
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
    void *data = fresh(*n);
    ck_ok(exf_st_read(f, t, 0, data, *n * 4, &err), err);
    return data;
}

double golden_distance(const float *a, const float *b, size_t n)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / size);
}
