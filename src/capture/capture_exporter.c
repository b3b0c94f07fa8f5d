/* capture_exporter.c - the observer that writes one .safetensors; see capture.h. */
#include "capture/capture.h"

#include "base/mem.h"
#include "format/safetensors.h"

#include <stdio.h>
#include <string.h>

/* A layer's tensors, in this order in the file's list. */
enum { MOE_INPUT, TOPK_IDS, TOPK_WEIGHTS, EXPERT_OUTPUTS, ROUTED_OUTPUT, BLOCK_OUTPUT, PER_LAYER };
enum { NAME_LEN = 48, LENGTHS = 0, TOKEN_IDS = 1, BEFORE_LAYERS = 2 };

struct exf_exporter {
    exf_observer observer;
    exf_st_writer *writer;
    const exf_layer_choice *layers;
    int index_of_layer[EXF_MAX_LAYERS]; /* of its first tensor in the list */
    size_t logits;                      /* index in the list */
};

/* Writes rows [row, row + n) of one tensor with `width` elements of 4 bytes per row. */
static exf_code put_rows(exf_exporter *x, size_t tensor, size_t row, int n, size_t width, const void *data, exf_err *err)
{
    return exf_st_writer_put(x->writer, tensor, row * width * 4, data, (size_t)n * width * 4, err);
}

static exf_code write_block(void *self, const exf_moe_block *b, exf_err *err)
{
    exf_exporter *x = self;
    if (!x->layers->chosen[b->layer]) return EXF_OK;
    size_t at = (size_t)x->index_of_layer[b->layer], h = (size_t)b->d_model, k = (size_t)b->top_k;
    exf_code rc;
    EXF_TRY(put_rows(x, at + MOE_INPUT, b->row, b->n_tokens, h, b->moe_input, err));
    EXF_TRY(put_rows(x, at + TOPK_IDS, b->row, b->n_tokens, k, b->topk_ids, err));
    EXF_TRY(put_rows(x, at + TOPK_WEIGHTS, b->row, b->n_tokens, k, b->topk_weights, err));
    EXF_TRY(put_rows(x, at + EXPERT_OUTPUTS, b->row, b->n_tokens, k * h, b->expert_outputs, err));
    EXF_TRY(put_rows(x, at + ROUTED_OUTPUT, b->row, b->n_tokens, h, b->routed_output, err));
    EXF_TRY(put_rows(x, at + BLOCK_OUTPUT, b->row, b->n_tokens, h, b->block_output, err));
out:
    return rc;
}

static exf_code write_logits(void *self, const exf_logits_block *b, exf_err *err)
{
    exf_exporter *x = self;
    return put_rows(x, x->logits, b->row, b->n_tokens, (size_t)b->vocab, b->logits, err);
}

typedef struct {
    exf_tensor *tensor;
    char (*name)[NAME_LEN];
    size_t n;
} tensor_list;

static void list_tensor(tensor_list *list, const char *name, exf_dtype dtype, int rank, int64_t a, int64_t b, int64_t c)
{
    snprintf(list->name[list->n], NAME_LEN, "%s", name);
    list->tensor[list->n] = (exf_tensor){.name = list->name[list->n], .dtype = dtype, .rank = rank, .shape = {a, b, c}};
    list->n++;
}

static void list_layer(tensor_list *list, int layer, int64_t t, int64_t k, int64_t h)
{
    static const struct { const char *name; exf_dtype dtype; int per_slot, wide; } part[PER_LAYER] = {
        [MOE_INPUT] = {"moe_input", EXF_DT_F32, 0, 1},         [TOPK_IDS] = {"topk_ids", EXF_DT_I32, 1, 0},
        [TOPK_WEIGHTS] = {"topk_weights", EXF_DT_F32, 1, 0},   [EXPERT_OUTPUTS] = {"expert_outputs", EXF_DT_F32, 1, 1},
        [ROUTED_OUTPUT] = {"routed_output", EXF_DT_F32, 0, 1}, [BLOCK_OUTPUT] = {"block_output", EXF_DT_F32, 0, 1},
    };
    for (int i = 0; i < PER_LAYER; i++) {
        char name[NAME_LEN];
        snprintf(name, sizeof name, "layers.%d.%s", layer, part[i].name);
        list_tensor(list, name, part[i].dtype, 1 + part[i].per_slot + part[i].wide, t, part[i].per_slot ? k : h, h);
    }
}

exf_code exf_exporter_new(exf_exporter **out, const char *target, int force, const exf_model *m, const exf_batch *batch,
                          exf_layer_choice *layers, int with_logits, const exf_provenance *p, exf_err *err)
{
    exf_exporter *x = NULL;
    tensor_list list = {0};
    exf_st_meta *meta = NULL;
    size_t most = BEFORE_LAYERS + (size_t)layers->n * PER_LAYER + 1;
    int64_t t = (int64_t)batch->n_tokens;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_new(&x, 1, sizeof *x, "exporter", err));
    x->observer = (exf_observer){.self = x, .block = write_block, .logits = with_logits ? write_logits : NULL};
    x->layers = layers;
    EXF_TRY(exf_mem_new(&list.tensor, most, sizeof *list.tensor, "tensor list", err));
    EXF_TRY(exf_mem_new(&list.name, most, sizeof *list.name, "tensor names", err));
    EXF_TRY(exf_mem_new(&meta, p->n, sizeof *meta, "metadata", err));
    list_tensor(&list, "sequence_lengths", EXF_DT_I32, 1, (int64_t)batch->n_sequences, 0, 0);
    if (batch->ids) list_tensor(&list, "token_ids", EXF_DT_I32, 1, t, 0, 0);
    for (int i = 0; i < layers->n; i++) {
        x->index_of_layer[layers->number[i]] = (int)list.n;
        list_layer(&list, layers->number[i], t, m->arch.top_k, m->arch.d_model);
    }
    x->logits = list.n;
    if (with_logits) list_tensor(&list, "logits", EXF_DT_F32, 2, t, m->arch.vocab, 0);
    for (size_t i = 0; i < p->n; i++) meta[i] = (exf_st_meta){p->key[i], p->value[i]};
    EXF_TRY(exf_st_writer_begin(&x->writer, target, force, list.tensor, list.n, meta, p->n, err));
    if (batch->ids) EXF_TRY(put_rows(x, TOKEN_IDS, 0, (int)batch->n_tokens, 1, batch->ids, err));
    for (size_t i = 0; i < batch->n_sequences; i++) EXF_TRY(put_rows(x, LENGTHS, i, 1, 1, &batch->span[i].n_tokens, err));
out:
    exf_mem_free(list.tensor);
    exf_mem_free(list.name);
    exf_mem_free(meta);
    if (rc != EXF_OK)
        exf_exporter_free(x);
    else
        *out = x;
    return rc;
}

const exf_observer *exf_exporter_observer(exf_exporter *x)
{
    return &x->observer;
}

exf_code exf_exporter_commit(exf_exporter *x, exf_err *err)
{
    exf_st_writer *w = x->writer;
    x->writer = NULL;
    return exf_st_writer_commit(w, err);
}

void exf_exporter_free(exf_exporter *x)
{
    if (!x) return;
    exf_st_writer_abort(x->writer);
    exf_mem_free(x);
}
