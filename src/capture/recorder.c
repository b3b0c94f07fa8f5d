/* recorder.c - the observer that writes a capture file; see capture.h. */
#include "artifact/artifact_capture.h"
#include "base/mem.h"
#include "capture/recorder.h"
#include "capture/capture_write_behind.h"

struct exf_recorder {
    exf_observer observer;
    exf_capture_file file;
    exf_capture_write_behind *behind;
    exf_layer_choice *layers;
};

static exf_code block(void *self, const exf_moe_block *b, exf_err *err)
{
    exf_recorder *r = self;
    if (!r->layers->chosen[b->layer]) return EXF_OK;
    return exf_capture_write_behind_put(r->behind, b->layer, (int64_t)b->row, b->n_tokens, b->topk_ids, b->topk_weights,
                                        b->expert_outputs, err);
}

exf_code exf_recorder_new(exf_recorder **out, const char *target, int force, const exf_run_shape *shape, exf_layer_choice *layers,
                          const exf_sequence_list *sequences, const exf_provenance *p, exf_err *err)
{
    exf_recorder *r = NULL;
    *out = NULL;
    exf_code rc = exf_mem_new(&r, 1, sizeof *r, "recorder", err);
    if (rc != EXF_OK) return rc;
    r->observer = (exf_observer){.self = r, .block = block};
    r->layers = layers;
    rc = exf_capture_create(&r->file, target, force, shape, layers->number, layers->n, sequences, p, err);
    if (rc == EXF_OK)
        rc = exf_capture_write_behind_new(&r->behind, &r->file, shape->n_tokens < EXF_MOE_BLOCK ? shape->n_tokens : EXF_MOE_BLOCK,
                                          err);
    if (rc != EXF_OK)
        exf_recorder_free(r);
    else
        *out = r;
    return rc;
}

const exf_observer *exf_recorder_observer(exf_recorder *r)
{
    return &r->observer;
}

exf_code exf_recorder_commit(exf_recorder *r, const exf_provenance *late, exf_err *err)
{
    exf_code rc = exf_capture_write_behind_finish(r->behind, err);
    if (rc == EXF_OK && late) rc = exf_capture_add_facts(&r->file, late, err);
    return rc == EXF_OK ? exf_capture_commit(&r->file, err) : rc;
}

void exf_recorder_free(exf_recorder *r)
{
    if (!r) return;
    exf_capture_write_behind_free(r->behind);
    exf_capture_abort(&r->file);
    exf_mem_free(r);
}
