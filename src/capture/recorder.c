/* recorder.c - the observer that writes a capture file; see recorder.h. */
#include "artifact/artifact_capture.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "capture/recorder.h"
#include "capture/capture_write_behind.h"
#include "kernels/statistics/row_energy.h"

#include <string.h>

#define RECORD "rows" /* of a resume point: the checksums of a layer */

struct exf_recorder {
    exf_observer observer;
    exf_capture_file file;
    exf_capture_write_behind *behind;
    exf_layer_choice *layers;
    exf_resume *resume; /* NULL: none */
    char *unfinished;   /* path; NULL: a run that cannot go on */
    unsigned char recorded[EXF_MAX_LAYERS]; /* the resume point has the layer's checksums */
};

static exf_code block(void *self, const exf_moe_block *b, exf_err *err)
{
    exf_recorder *r = self;
    double energy[EXF_MOE_BLOCK];
    if (!r->layers->chosen[b->layer]) return EXF_OK;
    for (int t = 0; b->stream && t < b->n_tokens; t++)
        energy[t] = exf_row_energy(b->stream + (size_t)t * (size_t)b->stream_width, b->stream_width);
    return exf_capture_write_behind_put(r->behind, b->layer, (int64_t)b->row, b->n_tokens, b->topk_ids, b->topk_weights,
                                        b->expert_outputs, energy, err);
}

/* ---- the resume point ---------------------------------------------------------------------- */

exf_code exf_recorder_unfinished(char **out, const char *target, exf_err *err)
{
    const char *slash = strrchr(target, '/');
    exf_text name = {0};
    char *dir = NULL;
    exf_code rc;
    EXF_TRY(exf_path_dir(&dir, target, err));
    EXF_TRY(exf_text_addf(&name, err, ".%s.unfinished", slash ? slash + 1 : target));
    EXF_TRY(exf_path_join(out, dir, name.s, err));
out:
    exf_text_free(&name);
    exf_mem_free(dir);
    return rc;
}

/* A layer's checksums as tensors of the file's own memory. */
static exf_code list_checksums(exf_recorder *r, int layer, exf_tensor t[EXF_CAPTURE_PARTS], exf_err *err)
{
    exf_capture_checksums sums[EXF_CAPTURE_PARTS];
    exf_code rc = exf_capture_layer_checksums(&r->file, layer, sums, err);
    for (int k = 0; rc == EXF_OK && k < exf_capture_parts(&r->file); k++)
        t[k] = (exf_tensor){.name = sums[k].name, .dtype = EXF_DT_I32, .rank = 1, .shape = {(int64_t)sums[k].n},
                            .data = sums[k].crc};
    return rc;
}

/* Completes the rows of finished layers and records their checksums. */
static exf_code settle(void *self, int done, exf_err *err)
{
    exf_recorder *r = self;
    exf_code rc;
    EXF_TRY(exf_capture_write_behind_finish(r->behind, err));
    EXF_TRY(exf_capture_settle(&r->file, err));
    for (int i = 0; r->resume && i < r->layers->n && r->layers->number[i] < done; i++) {
        exf_tensor t[EXF_CAPTURE_PARTS];
        int layer = r->layers->number[i];
        if (r->recorded[layer]) continue;
        EXF_TRY(list_checksums(r, layer, t, err));
        EXF_TRY(exf_resume_put(r->resume, RECORD, layer, t, (size_t)exf_capture_parts(&r->file), err));
        r->recorded[layer] = 1;
    }
out:
    return rc;
}

static exf_code sync_file(void *self, exf_err *err)
{
    const exf_recorder *r = self;
    return exf_capture_sync(&r->file, err);
}

/* Takes a finished layer's checksums from the resume point and compares its rows with them. */
static exf_code keep_layer(exf_recorder *r, int layer, exf_err *err)
{
    exf_tensor t[EXF_CAPTURE_PARTS];
    exf_st_file *f = NULL;
    exf_code rc;
    EXF_TRY(list_checksums(r, layer, t, err));
    EXF_TRY(exf_resume_get(r->resume, RECORD, layer, &f, err));
    for (int k = 0; k < exf_capture_parts(&r->file); k++) EXF_TRY(exf_resume_read(f, &t[k], (void *)(uintptr_t)t[k].data, err));
    rc = exf_capture_keep_layer(&r->file, layer, err);
    if (rc == EXF_FORMAT)
        rc = exf_fail(err, EXF_FORMAT, "%s: layer %d differs from its checksums in the resume point; --resume=never starts over",
                      r->unfinished, layer);
    r->recorded[layer] = rc == EXF_OK;
out:
    exf_st_close(f);
    return rc;
}

static exf_code keep_layers(exf_recorder *r, int done, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; rc == EXF_OK && i < r->layers->n && r->layers->number[i] < done; i++)
        rc = keep_layer(r, r->layers->number[i], err);
    return rc;
}

/* ---- making and committing ------------------------------------------------------------------- */

exf_code exf_recorder_new(exf_recorder **out, const char *target, int force, const exf_run_shape *shape, exf_layer_choice *layers,
                          const exf_sequence_list *sequences, int has_stream, const exf_provenance *p, exf_resume *resume,
                          exf_err *err)
{
    exf_recorder *r = NULL;
    int done = resume ? exf_resume_start(resume)->layers_done : 0;
    int64_t rows = shape->n_tokens < EXF_MOE_BLOCK ? shape->n_tokens : EXF_MOE_BLOCK;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_new(&r, 1, sizeof *r, "recorder", err));
    r->observer = (exf_observer){.self = r, .block = block, .settle = settle};
    r->layers = layers;
    r->resume = resume;
    if (resume && (done || exf_resume_saves(resume))) EXF_TRY(exf_recorder_unfinished(&r->unfinished, target, err));
    if (r->unfinished && !done) EXF_TRY(exf_resume_claim_output(resume, strrchr(r->unfinished, '/') + 1, err));
    EXF_TRY(exf_capture_create_at(&r->file, target, force, r->unfinished, done > 0, shape, layers->number, layers->n, sequences, p,
                                  err));
    if (has_stream) EXF_TRY(exf_capture_add_stream(&r->file, err));
    EXF_TRY(keep_layers(r, done, err));
    EXF_TRY(exf_capture_write_behind_new(&r->behind, &r->file, rows, err));
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
    EXF_TRY(exf_capture_write_behind_finish(r->behind, err));
    if (r->resume) EXF_TRY(exf_resume_wait(r->resume, err)); /* it syncs the file */
    if (late) EXF_TRY(exf_capture_add_facts(&r->file, late, err));
    rc = exf_capture_commit(&r->file, err);
out:
    return rc;
}

void exf_recorder_free(exf_recorder *r)
{
    exf_err unused;
    if (!r) return;
    if (r->resume && exf_resume_wait(r->resume, &unused) != EXF_OK) unused.code = EXF_OK; /* failure dropped */
    exf_capture_write_behind_free(r->behind);
    exf_capture_abort(&r->file);
    exf_mem_free(r->unfinished);
    exf_mem_free(r);
}
