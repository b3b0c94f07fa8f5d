/* capture_recorder.c - the observer that writes a capture file; see capture.h. */
#include "capture/capture.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/worker.h"
#include "kernels/statistics/divergence.h"

#include <pthread.h>
#include <string.h>

#define RECORD "rows"           /* of a resume point: the checksums of a layer */
#define STRUCTURE "structure"   /* of layer 0: what is in the unfinished file beside rows */

/* ---- writing while the pass computes -------------------------------------------------------------------- */

enum { N_SLOTS = 2 };

typedef struct {
    exf_job job;
    exf_capture_file *file;
    int layer;
    int64_t row, n;
    int32_t *ids;
    float *weights, *outputs;
    double *stream_sq;
} slot;

struct exf_capture_write_behind {
    exf_capture_file *file;
    int64_t rows;
    slot slots[N_SLOTS];     /* a ring */
    size_t filled;           /* blocks so far */
    pthread_mutex_t filling; /* a slot is filled by one caller at a time */
    exf_worker worker;       /* writes block after block */
};

static exf_code write_slot(void *self, exf_err *err)
{
    const slot *s = self;
    return exf_capture_put(s->file, s->layer, s->row, s->n, s->ids, s->weights, s->outputs, s->stream_sq, err);
}

exf_code exf_capture_write_behind_new(exf_capture_write_behind **out, exf_capture_file *file, int64_t rows, exf_err *err)
{
    exf_capture_write_behind *w = NULL;
    size_t slots = (size_t)(rows * file->shape.top_k);
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_new(&w, 1, sizeof *w, "captured blocks", err));
    w->file = file;
    w->rows = rows;
    pthread_mutex_init(&w->filling, NULL);
    exf_worker_open(&w->worker);
    for (int i = 0; i < N_SLOTS; i++) {
        w->slots[i].file = file;
        EXF_TRY(exf_mem_raw(&w->slots[i].ids, slots, sizeof(int32_t), "captured blocks", err));
        EXF_TRY(exf_mem_raw(&w->slots[i].stream_sq, (size_t)rows, sizeof(double), "captured blocks", err));
        EXF_TRY(exf_mem_raw(&w->slots[i].weights, slots, sizeof(float), "captured blocks", err));
        EXF_TRY(exf_mem_raw(&w->slots[i].outputs, slots * (size_t)file->shape.d_model, sizeof(float), "captured blocks", err));
    }
out:
    if (rc != EXF_OK)
        exf_capture_write_behind_free(w);
    else
        *out = w;
    return rc;
}

exf_code exf_capture_write_behind_put(exf_capture_write_behind *w, int layer, int64_t row, int64_t n, const int32_t *ids,
                                      const float *weights, const float *outputs, const double *stream_sq, exf_err *err)
{
    size_t slots = (size_t)(n * w->file->shape.top_k);
    if (n > w->rows)
        return exf_fail(err, EXF_INTERNAL, "capture: a block of %lld rows, expected at most %lld", (long long)n,
                        (long long)w->rows);
    pthread_mutex_lock(&w->filling);
    exf_code rc = exf_worker_wait(&w->worker, N_SLOTS - 1, err);
    if (rc == EXF_OK) {
        slot *s = &w->slots[w->filled++ % N_SLOTS];
        s->layer = layer;
        s->row = row;
        s->n = n;
        memcpy(s->ids, ids, slots * sizeof *ids);
        memcpy(s->weights, weights, slots * sizeof *weights);
        memcpy(s->stream_sq, stream_sq, (size_t)n * sizeof *stream_sq);
        memcpy(s->outputs, outputs, slots * (size_t)w->file->shape.d_model * sizeof *outputs);
        rc = exf_worker_give(&w->worker, &s->job, write_slot, s, err);
    }
    pthread_mutex_unlock(&w->filling);
    return rc;
}

exf_code exf_capture_write_behind_finish(exf_capture_write_behind *w, exf_err *err)
{
    return exf_worker_wait(&w->worker, 0, err);
}

void exf_capture_write_behind_free(exf_capture_write_behind *w)
{
    if (!w) return;
    exf_worker_close(&w->worker);
    for (int i = 0; i < N_SLOTS; i++) {
        exf_mem_free(w->slots[i].ids);
        exf_mem_free(w->slots[i].weights);
        exf_mem_free(w->slots[i].stream_sq);
        exf_mem_free(w->slots[i].outputs);
    }
    pthread_mutex_destroy(&w->filling);
    exf_mem_free(w);
}

/* ---- the observer --------------------------------------------------------------------------------------- */

struct exf_recorder {
    exf_observer observer;
    exf_capture_file file;
    exf_capture_write_behind *writer;
    exf_layer_choice *layers;
    exf_resume *resume; /* NULL: none */
    char *unfinished;   /* path; NULL: a run that cannot go on */
    int has_structure;  /* the resume point has the unfinished file's structure */
    unsigned char recorded[EXF_MAX_LAYERS]; /* the resume point has the layer's checksums */
};

static exf_code record_block(void *self, const exf_moe_block *b, exf_err *err)
{
    exf_recorder *r = self;
    double energy[EXF_MOE_BLOCK];
    if (!r->layers->chosen[b->layer]) return EXF_OK;
    for (int t = 0; b->stream && t < b->n_tokens; t++)
        energy[t] = exf_row_energy(b->stream + (size_t)t * (size_t)b->stream_width, b->stream_width);
    return exf_capture_write_behind_put(r->writer, b->layer, (int64_t)b->row, b->n_tokens, b->topk_ids, b->topk_weights,
                                        b->expert_outputs, energy, err);
}

/* ---- the resume point ------------------------------------------------------------------------------------ */

exf_code exf_recorder_unfinished(char **out, const char *target, exf_err *err)
{
    const char *slash = strrchr(target, '/');
    exf_text name = {0};
    char *dir = NULL;
    exf_code rc;
    EXF_TRY(exf_path_dir(&dir, target, err));
    exf_text_appendf(&name, ".%s.unfinished", slash ? slash + 1 : target);
    EXF_TRY(exf_text_end(&name, err));
    EXF_TRY(exf_path_join(out, dir, name.s, err));
out:
    exf_text_free(&name);
    exf_mem_free(dir);
    return rc;
}

/* Records the structure of the unfinished file once: a record of layer 0 is part of every resume point. */
static exf_code record_structure(exf_recorder *r, exf_err *err)
{
    exf_h5_structure s = {.n = 0};
    exf_code rc;
    if (r->has_structure) return EXF_OK;
    EXF_TRY(exf_h5_keep_structure(r->file.h, &s, err));
    const exf_tensor t[] = {{.name = "bytes", .dtype = EXF_DT_U8, .rank = 1, .shape = {(int64_t)s.n_bytes}, .data = s.bytes},
                            {.name = "extent", .dtype = EXF_DT_I64, .rank = 2, .shape = {(int64_t)s.n, 2}, .data = s.extent}};
    rc = exf_resume_put(r->resume, STRUCTURE, 0, t, 2, err);
    r->has_structure = rc == EXF_OK;
out:
    exf_h5_structure_free(&s);
    return rc;
}

static exf_tensor crc_tensor(const exf_recorder *r, uint32_t *crc)
{
    return (exf_tensor){.name = "crc32", .dtype = EXF_DT_I32, .rank = 1, .shape = {exf_capture_parts(&r->file)}, .data = crc};
}

/* Waits for the rows of finished layers and records their checksums. */
static exf_code record_layers(void *self, int done, exf_err *err)
{
    exf_recorder *r = self;
    exf_code rc;
    EXF_TRY(exf_capture_write_behind_finish(r->writer, err));
    if (!r->unfinished || !exf_resume_saves(r->resume)) return EXF_OK;
    EXF_TRY(record_structure(r, err));
    for (int i = 0; i < r->layers->n && r->layers->number[i] < done; i++) {
        uint32_t crc[EXF_CAPTURE_PARTS];
        int layer = r->layers->number[i];
        exf_tensor t = crc_tensor(r, crc);
        if (r->recorded[layer]) continue;
        EXF_TRY(exf_capture_checksums(&r->file, layer, crc, err));
        EXF_TRY(exf_resume_put(r->resume, RECORD, layer, &t, 1, err));
        r->recorded[layer] = 1;
    }
out:
    return rc;
}

static exf_code sync_file(void *self, exf_err *err)
{
    const exf_recorder *r = self;
    return exf_h5_sync(r->file.h, err);
}

static exf_code read_structure(const exf_recorder *r, exf_h5_structure *s, exf_err *err)
{
    exf_st_file *f = NULL;
    exf_code rc;
    EXF_TRY(exf_resume_get(r->resume, STRUCTURE, 0, &f, err));
    const exf_st_tensor *extent = exf_st_find(f, "extent"), *bytes = exf_st_find(f, "bytes");
    if (!extent || !bytes || extent->view.rank != 2 || bytes->view.rank != 1)
        return exf_st_close(f), exf_fail(err, EXF_INTERNAL, "%s: the record of its structure is none", r->unfinished);
    exf_tensor of_extent = {.name = "extent", .dtype = EXF_DT_I64, .rank = 2, .shape = {extent->view.shape[0], 2}},
               of_bytes = {.name = "bytes", .dtype = EXF_DT_U8, .rank = 1, .shape = {bytes->view.shape[0]}};
    s->n = (size_t)extent->view.shape[0];
    s->n_bytes = (size_t)bytes->view.shape[0];
    EXF_TRY(exf_mem_new(&s->extent, 2 * s->n, sizeof *s->extent, "HDF5 structure", err));
    EXF_TRY(exf_mem_new(&s->bytes, s->n_bytes, 1, "HDF5 structure", err));
    EXF_TRY(exf_resume_read(f, &of_extent, s->extent, err));
    rc = exf_resume_read(f, &of_bytes, s->bytes, err);
out:
    exf_st_close(f);
    return rc;
}

/* Takes a finished layer's checksums from the resume point and compares its rows with them. */
static exf_code take_layer(exf_recorder *r, int layer, exf_err *err)
{
    uint32_t crc[EXF_CAPTURE_PARTS];
    exf_tensor t = crc_tensor(r, crc);
    exf_st_file *f = NULL;
    exf_code rc;
    EXF_TRY(exf_resume_get(r->resume, RECORD, layer, &f, err));
    EXF_TRY(exf_resume_read(f, &t, crc, err));
    rc = exf_capture_take_layer(&r->file, layer, crc, err);
    if (rc == EXF_FORMAT)
        rc = exf_fail(err, EXF_FORMAT, "%s: layer %d differs from its checksums in the resume point; --resume=never starts over",
                      r->unfinished, layer);
    r->recorded[layer] = rc == EXF_OK;
out:
    exf_st_close(f);
    return rc;
}

/* Opens the unfinished file of an earlier run, with the layers that are done. */
static exf_code continue_file(exf_recorder *r, const exf_capture_plan *plan, int done, exf_err *err)
{
    exf_h5_structure s = {.n = 0};
    exf_code rc;
    EXF_TRY(read_structure(r, &s, err));
    EXF_TRY(exf_capture_continue(&r->file, plan, &s, err));
    r->has_structure = 1;
    for (int i = 0; i < r->layers->n; i++) {
        int layer = r->layers->number[i];
        EXF_TRY(layer < done ? take_layer(r, layer, err) : exf_capture_take_layer(&r->file, layer, NULL, err));
    }
out:
    exf_h5_structure_free(&s);
    return rc;
}

/* ---- making and committing -------------------------------------------------------------------------------- */

exf_code exf_recorder_new(exf_recorder **out, const char *target, int force, const exf_run_shape *shape, exf_layer_choice *layers,
                          const exf_sequence_list *sequences, const exf_provenance *p, exf_resume *resume,
                          exf_err *err)
{
    exf_recorder *r = NULL;
    int done = resume ? exf_resume_start(resume)->layers_done : 0;
    int64_t rows = shape->n_tokens < EXF_MOE_BLOCK ? shape->n_tokens : EXF_MOE_BLOCK;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_new(&r, 1, sizeof *r, "recorder", err));
    r->observer = (exf_observer){.self = r, .block = record_block, .settle = record_layers};
    r->layers = layers;
    r->resume = resume;
    if (resume && (done || exf_resume_saves(resume))) EXF_TRY(exf_recorder_unfinished(&r->unfinished, target, err));
    if (r->unfinished && !done) EXF_TRY(exf_resume_claim_output(resume, strrchr(r->unfinished, '/') + 1, err));
    exf_capture_plan plan = {.target = target, .temporary = r->unfinished, .force = force, .n_layers = layers->n,
                             .has_stream = 1, .shape = *shape, .layer_number = layers->number, .sequences = sequences,
                             .provenance = p};
    EXF_TRY(done ? continue_file(r, &plan, done, err) : exf_capture_create(&r->file, &plan, err));
    EXF_TRY(exf_capture_write_behind_new(&r->writer, &r->file, rows, err));
    if (resume) exf_resume_sync_first(resume, sync_file, r);
out:
    if (rc == EXF_OK)
        *out = r;
    else
        exf_recorder_free(r);
    return rc;
}

const exf_observer *exf_recorder_observer(exf_recorder *r)
{
    return &r->observer;
}

exf_code exf_recorder_commit(exf_recorder *r, const exf_provenance *late, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_capture_write_behind_finish(r->writer, err));
    if (r->resume) EXF_TRY(exf_resume_wait(r->resume, err)); /* it syncs the file */
    if (late) EXF_TRY(exf_facts_append(late, "/provenance", r->file.h, err));
    rc = exf_capture_commit(&r->file, err);
out:
    return rc;
}

void exf_recorder_free(exf_recorder *r)
{
    exf_err unused;
    if (!r) return;
    if (r->resume && exf_resume_wait(r->resume, &unused) != EXF_OK) unused.code = EXF_OK; /* failure dropped */
    exf_capture_write_behind_free(r->writer);
    exf_capture_abort(&r->file);
    exf_mem_free(r->unfinished);
    exf_mem_free(r);
}
