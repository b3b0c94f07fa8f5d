/* recorder.c - the observer that writes a capture file; see capture.h. */
#include "artifact/capture_file.h"
#include "base/mem.h"
#include "capture/capture.h"

#include <pthread.h>

struct exf_recorder {
    exf_observer observer;
    exf_capture_file file;
    exf_layer_choice *layers;
    pthread_mutex_t lock; /* HDF5 takes one caller at a time */
};

static exf_code block(void *self, const exf_moe_block *b, exf_err *err)
{
    exf_recorder *r = self;
    if (!r->layers->chosen[b->layer]) return EXF_OK;
    pthread_mutex_lock(&r->lock);
    exf_code rc = exf_capture_put(&r->file, b->layer, (int64_t)b->row, b->n_tokens, b->topk_ids, b->topk_weights, b->expert_outputs, err);
    pthread_mutex_unlock(&r->lock);
    return rc;
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
    pthread_mutex_init(&r->lock, NULL);
    rc = exf_capture_create(&r->file, target, force, shape, layers->number, layers->n, sequences, p, err);
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

exf_code exf_recorder_commit(exf_recorder *r, exf_err *err)
{
    return exf_capture_commit(&r->file, err);
}

void exf_recorder_free(exf_recorder *r)
{
    if (!r) return;
    exf_capture_abort(&r->file);
    pthread_mutex_destroy(&r->lock);
    exf_mem_free(r);
}
