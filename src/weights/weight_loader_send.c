/* weight_loader_send.c - the sender of the loader of a device: copies chunks, has the device dequantize or round them, and finishes
 * loads; see weight_loader.c. */
#include "weights/weight_loader_internal.h"

#include "base/log.h"
#include "base/mem.h"

#include <string.h>

/* ---- what both kinds of threads need ------------------------------------------------------------------ */

int exf_weight_loader_failed_before(const exf_weight_loader *s, size_t load, size_t chunk)
{
    return s->err.code != EXF_OK && (s->err_load < load || (s->err_load == load && s->err_chunk < chunk));
}

void exf_weight_loader_note_failure(exf_weight_loader *s, size_t load, size_t chunk, const exf_err *err)
{
    if (exf_weight_loader_failed_before(s, load, chunk)) return;
    s->err = *err;
    s->err_load = load;
    s->err_chunk = chunk;
}

/* ---- the sender: one chunk -------------------------------------------------------------------------------------- */

/* Describes a chunk whose tensors are in device memory. */
static exf_device_coded_rows coded_rows(const exf_weight_chunk *p, const char *device)
{
    const exf_weight_source *w = &p->at.w;
    static const exf_device_coding coding[] = {
        [EXF_CODED_PLAIN] = EXF_DEVICE_CODED_PLAIN, [EXF_CODED_FP8] = EXF_DEVICE_CODED_FP8,
        [EXF_CODED_FP4] = EXF_DEVICE_CODED_FP4,     [EXF_CODED_INT4] = EXF_DEVICE_CODED_INT4,
        [EXF_CODED_GPTQ] = EXF_DEVICE_CODED_GPTQ,   [EXF_CODED_AWQ] = EXF_DEVICE_CODED_AWQ};
    const void *at[EXF_STORED_KINDS];
    for (int kind = 0; kind < EXF_STORED_KINDS; kind++)
        at[kind] = w->of[kind] ? device + exf_device_offset(p, (exf_stored_kind)kind) : NULL;
    return (exf_device_coded_rows){.coding = coding[w->coding], .dtype = exf_weight_source_dtype(w),
                                   .scale_dtype = w->scale_dtype, .codes = at[EXF_STORED_CODES], .scales = at[EXF_STORED_SCALES],
                                   .rows = p->n_rows, .cols = p->at.cols, .block_rows = (size_t)w->block_rows,
                                   .block_cols = (size_t)w->block_cols, .zeros = at[EXF_STORED_ZEROS], .zero_add = w->zero_add,
                                   .zero_carries = w->zero_carries,
                                   .groups = at[EXF_STORED_GROUPS], .factor = at[EXF_STORED_FACTOR], .divides = w->divides};
}

#define BEYOND "is beyond bfloat16"

/* Finds the bad value by dequantizing on the host, since the device only reports that there is one. */
static exf_code name_bad_weight(const exf_weight_loader *s, const exf_weight_chunk *p, int layer, exf_err *err)
{
    float *values = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&values, p->at.rows * p->at.cols, sizeof *values, "weights", err));
    EXF_TRY(exf_model_read(s->model, p->role, layer < 0 ? -1 : layer, p->expert, values, err));
    rc = exf_fail(err, EXF_NUMERIC, "layer %d: a weight of \"%s\" " BEYOND, layer, p->at.w.of[EXF_STORED_CODES]->tensor->view.name);
out:
    exf_mem_free(values);
    return rc;
}

/* Returns 1 for a chunk whose values are checked with the whole part, as it was rounded or copied as stored: what dequantizes the
 * others has looked at them. */
static int is_checked_later(const exf_weight_chunk *p)
{
    return (!p->raw && p->number == EXF_NUMBER_BF16) || exf_chunk_copied_as_stored(p);
}

/* Queues the copy of a chunk: to its place, or by way of device memory where the device dequantizes it. */
static void queue_copy(const exf_weight_loader *s, exf_chunk_copy *c)
{
    const exf_backend *b = s->b;
    const exf_weight_chunk *p = &exf_plan_of(s, c->from->load)->chunk[c->from->number];
    const exf_raw_rows *raw = &c->from->bytes.rows;
    char *to = exf_area_of(s, c->from->load) + p->to;
    if (!p->raw && p->number == EXF_NUMBER_BF16) { /* the host decodes it and the device rounds it */
        int cols = (int)p->at.cols;
        b->upload(c->q, c->device, exf_values_of(c->from, p), p->n_rows * p->at.cols * sizeof(float));
        b->gpu->round_rows(c->q, (uint16_t *)(void *)to, cols, (const float *)(const void *)c->device, cols, (int)p->n_rows, cols);
    } else if (!p->raw) {
        b->upload(c->q, to, exf_values_of(c->from, p), p->n_rows * p->at.cols * sizeof(float));
    } else if (exf_chunk_copied_as_stored(p)) {
        b->upload(c->q, to + c->from->slice, raw->of[EXF_STORED_CODES], c->from->n);
    } else {
        exf_device_coded_rows rows = coded_rows(p, c->device);
        for (int kind = 0; kind < EXF_STORED_KINDS; kind++)
            if (raw->of[kind])
                b->upload(c->q, c->device + exf_device_offset(p, (exf_stored_kind)kind), raw->of[kind],
                          exf_chunk_stored_bytes(p, (exf_stored_kind)kind));
        b->gpu->dequantize(c->q, to, p->number, &rows, c->bad);
    }
}

/* ---- a whole load ------------------------------------------------------------------------------------ */

/* Checks all values of a part that were copied as stored, or rounded; writes the router's matrix twice side by side, [E, 2 H]. */
static exf_code finish_load(const exf_weight_loader *s, const exf_chunk_copy *c, const exf_weight_plan *p, char *slot,
                             exf_err *err)
{
    const exf_backend *b = s->b;
    unsigned char checked[EXF_W_COUNT] = {0};
    int bad = 0;
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < p->n; i++) checked[p->chunk[i].role] |= (unsigned char)is_checked_later(&p->chunk[i]);
    for (int role = 0; role < EXF_W_COUNT; role++) {
        size_t n = checked[role] ? exf_weight_plan_elements(s->model, (exf_role)role, &p->of) : 0;
        b->gpu->check_bf16(c->q, (const uint16_t *)(const void *)(slot + p->first[role]), n, c->bad);
    }
    EXF_TRY(b->download(c->q, &bad, c->bad, sizeof bad, err));
    for (size_t i = 0; bad && i < p->n; i++)
        if (is_checked_later(&p->chunk[i])) {
            rc = name_bad_weight(s, &p->chunk[i], p->of.layer, err);
            if (rc != EXF_NUMERIC || !strstr(err->msg, BEYOND) || i + 1 == p->n) break;
        }
    if (rc != EXF_OK || !p->split) return rc;
    const exf_architecture *a = &s->model->arch;
    uint16_t *split = (uint16_t *)(void *)(slot + p->split);
    const float *router = (const float *)(const void *)(slot + p->first[EXF_W_ROUTER]);
    for (int half = 0; half < 2; half++)
        b->gpu->round_rows(c->q, split + half * a->d_model, 2 * a->d_model, router, a->d_model, a->n_experts, a->d_model);
    rc = b->finish(c->q, err);
out:
    return rc;
}

/* ---- the sender --------------------------------------------------------------------------------------- */

/* Waits for the copy, if there is one, gives its buffer back and, after its load's last chunk, finishes the load.  Called with the
 * lock held; releases it while it waits and works. */
static void settle_copy(exf_weight_loader *s, exf_chunk_copy *c)
{
    exf_err err = {.code = EXF_OK};
    exf_chunk_buffer *from = c->from;
    if (!from) return;
    size_t load = from->load;
    const exf_weight_plan *plan = exf_plan_of(s, load);
    const exf_weight_chunk *p = &plan->chunk[from->number];
    pthread_mutex_unlock(&s->lock);
    double start = exf_clock();
    int bad = 0, copied = !p->raw || exf_chunk_copied_as_stored(p);
    exf_code rc = copied ? s->b->finish(c->q, &err) : s->b->download(c->q, &bad, c->bad, sizeof bad, &err);
    if (rc == EXF_OK) {
        if (bad) rc = name_bad_weight(s, p, plan->of.layer, &err);
        exf_chunk_done(s->shared, &from->bytes);
    }
    s->sending += exf_clock() - start;
    pthread_mutex_lock(&s->lock);
    c->from = NULL;
    if (rc != EXF_OK) exf_weight_loader_note_failure(s, load, from->number, &err);
    from->full = 0;
    pthread_cond_signal(&from->owner->work);
    if (!from->last || --s->left[load] > 0) return;
    int skip = exf_weight_loader_failed_before(s, load, plan->n);
    pthread_mutex_unlock(&s->lock);
    rc = skip ? EXF_OK : finish_load(s, c, plan, exf_area_of(s, load), &err);
    pthread_mutex_lock(&s->lock);
    if (rc != EXF_OK) exf_weight_loader_note_failure(s, load, plan->n, &err);
    s->ready[load] = 1;
    pthread_cond_signal(&s->done);
}

void *exf_weight_loader_send(void *self)
{
    exf_weight_loader *s = self;
    int turn = 0; /* the copy that was queued first */
    pthread_mutex_lock(&s->lock);
    while (!s->quit) {
        exf_chunk_copy *c = &s->copies[turn];
        if (!s->read.n && !c->from) {
            int others = 0;
            for (int i = 0; i < SENDER_COPIES; i++) others |= s->copies[i].from != NULL;
            if (!others) pthread_cond_wait(&s->filled, &s->lock);
            turn = others ? (turn + 1) % SENDER_COPIES : turn;
            continue;
        }
        settle_copy(s, c);
        if (s->read.n) {
            c->from = s->read.list[s->read.first];
            s->read.first = (s->read.first + 1) % (sizeof s->read.list / sizeof *s->read.list);
            s->read.n--;
            pthread_mutex_unlock(&s->lock);
            queue_copy(s, c);
            pthread_mutex_lock(&s->lock);
        }
        turn = (turn + 1) % SENDER_COPIES;
    }
    for (int i = 0; i < SENDER_COPIES; i++) settle_copy(s, &s->copies[i]);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}
