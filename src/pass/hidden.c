/* hidden.c - stores the hidden states of all lanes, and copies groups of them to a GPU and back; see hidden.h.
 *
 * Three waits keep the order.  Work on a group waits for the group's upload.  The group's
 * download waits for that work.  An upload waits for every download and all work queued
 * before it: the host copy it reads and the buffer it fills must be up to date. */
#include "pass/hidden.h"

#include "base/mem.h"

#include <string.h>

/* Returns the group that starts at sequence `first`: as many whole sequences as fit in the window. */
static exf_sequence_group group_from(const exf_batch *batch, size_t first, size_t window)
{
    exf_sequence_group g = {.first = first, .row = batch->span[first].offset};
    for (size_t i = first; i < batch->n_sequences; i++) {
        size_t n = (size_t)batch->span[i].n_tokens;
        if (window && g.n && g.n_rows + n > window) break;
        g.n++;
        g.n_rows += n;
    }
    return g;
}

size_t exf_hidden_token_blocks(const exf_batch *batch, size_t window, size_t tokens)
{
    size_t pieces = 0;
    for (size_t i = 0; i < batch->n_sequences;) {
        exf_sequence_group g = group_from(batch, i, window);
        size_t sequence = g.first, end = g.row + g.n_rows;
        for (size_t row = g.row; row < end; pieces++) {
            sequence = exf_sequence_of(batch, sequence, row);
            row = exf_moe_call_end(batch, sequence, row, end, tokens);
        }
        i += g.n;
    }
    return pieces;
}

exf_code exf_hidden_open(exf_hidden *h, const exf_backend *b, exf_compute compute, const exf_batch *batch, size_t width,
                         size_t n_lanes, size_t window, exf_err *err)
{
    exf_code rc;
    size_t floats, most = 0;
    *h = (exf_hidden){.b = b, .width = width, .n_rows = batch->n_tokens, .n_lanes = n_lanes, .host_resident = window > 0};
    EXF_TRY(exf_mem_mul(&floats, batch->n_tokens, width, "hidden states", err));
    EXF_TRY(exf_mem_mul(&floats, floats, sizeof(float), "hidden states", err));
    EXF_TRY(exf_mem_new(&h->group, batch->n_sequences ? batch->n_sequences : 1, sizeof *h->group, "groups of sequences", err));
    for (size_t i = 0; i < batch->n_sequences; i += h->group[h->n_groups++].n) {
        h->group[h->n_groups] = group_from(batch, i, window);
        most = h->group[h->n_groups].n_rows > most ? h->group[h->n_groups].n_rows : most;
    }
    EXF_TRY(exf_mem_new(&h->lane, n_lanes, sizeof *h->lane, "lanes", err));
    for (size_t i = 0; i < n_lanes; i++) {
        if (h->host_resident)
            EXF_TRY(b->gpu->alloc_staging((void *)&h->lane[i], floats, "hidden states", err));
        else
            EXF_TRY(b->alloc(&h->lane[i], floats, 1, "hidden states", err));
    }
    if (h->host_resident) {
        EXF_TRY(h->b->open(&h->to_gpu, compute, err));
        EXF_TRY(h->b->open(&h->to_host, compute, err));
        for (int i = 0; i < 2; i++) EXF_TRY(h->b->alloc(&h->buffer[i].rows, most * h->width, sizeof(float), "hidden states", err));
    }
out:
    return rc;
}

void exf_hidden_close(exf_hidden *h)
{
    if (!h->b) return;
    if (h->host_resident) {
        h->b->close(h->to_gpu); /* closing waits for queued copies */
        h->b->close(h->to_host);
    }
    for (size_t i = 0; h->lane && i < h->n_lanes; i++) {
        if (h->host_resident)
            h->b->gpu->free_staging(h->lane[i]);
        else
            h->b->free(h->lane[i]);
    }
    for (int i = 0; i < 2; i++) h->b->free(h->buffer[i].rows);
    exf_mem_free(h->lane);
    exf_mem_free(h->group);
    memset(h, 0, sizeof *h);
}

uint64_t exf_hidden_bytes(const exf_batch *batch, size_t width, size_t n_lanes, size_t window, uint64_t *host)
{
    uint64_t all = (uint64_t)batch->n_tokens * sizeof(float) * width * n_lanes;
    *host = window ? all : 0;
    return window ? 2 * (uint64_t)window * sizeof(float) * width : all;
}

/* ---- uploads and downloads ------------------------------------------------------- */

static float *stored_rows(const exf_hidden *h, size_t lane, size_t group)
{
    return h->lane[lane] + h->group[group].row * h->width;
}

static size_t bytes_of(const exf_hidden *h, size_t group)
{
    return h->group[group].n_rows * h->width * sizeof(float);
}

static int holds(const exf_hidden_buffer *b, size_t lane, size_t group)
{
    return b->valid && b->lane == lane && b->group == group;
}

/* Returns the buffer that holds the group or will receive it; consecutive groups use different buffers. */
static exf_hidden_buffer *buffer_for(exf_hidden *h, size_t lane, size_t group)
{
    for (int i = 0; i < 2; i++)
        if (holds(&h->buffer[i], lane, group)) return &h->buffer[i];
    return &h->buffer[group % 2];
}

static void upload_group(exf_hidden *h, exf_hidden_buffer *to, size_t lane, size_t group, exf_queue *q)
{
    h->b->gpu->wait_for(h->to_gpu, h->to_host);
    h->b->gpu->wait_for(h->to_gpu, q);
    h->b->copy(h->to_gpu, to->rows, stored_rows(h, lane, group), bytes_of(h, group));
    *to = (exf_hidden_buffer){to->rows, lane, group, 1};
}

float *exf_hidden_take(exf_hidden *h, size_t lane, size_t group, exf_hidden_use use, exf_queue *q)
{
    if (!h->host_resident) return stored_rows(h, lane, group);
    exf_hidden_buffer *own = buffer_for(h, lane, group);
    if (use == EXF_HIDDEN_FILL) {
        h->b->gpu->wait_for(q, h->to_host);
        h->b->gpu->wait_for(q, h->to_gpu);
        *own = (exf_hidden_buffer){own->rows, lane, group, 1};
        return own->rows;
    }
    size_t next = (group + 1) % h->n_groups;
    exf_hidden_buffer *other = own == &h->buffer[0] ? &h->buffer[1] : &h->buffer[0];
    if (!holds(own, lane, group)) upload_group(h, own, lane, group, q);
    h->b->gpu->wait_for(q, h->to_gpu);
    if (!holds(other, lane, next) && next != group) upload_group(h, other, lane, next, q);
    return own->rows;
}

void exf_hidden_give(exf_hidden *h, size_t lane, size_t group, exf_hidden_use use, exf_queue *q)
{
    if (!h->host_resident || use == EXF_HIDDEN_READ) return;
    h->b->gpu->wait_for(h->to_host, q);
    h->b->copy(h->to_host, stored_rows(h, lane, group), buffer_for(h, lane, group)->rows, bytes_of(h, group));
}

exf_code exf_hidden_settle(exf_hidden *h, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!h->host_resident) return EXF_OK;
    EXF_TRY(h->b->finish(h->to_host, err));
    EXF_TRY(h->b->finish(h->to_gpu, err));
out:
    return rc;
}

exf_code exf_hidden_copy(exf_hidden *h, size_t to, size_t from, exf_queue *q, exf_err *err)
{
    size_t bytes = h->n_rows * h->width * sizeof(float);
    exf_code rc = EXF_OK;
    if (!h->host_resident) {
        h->b->copy(q, h->lane[to], h->lane[from], bytes);
        return EXF_OK;
    }
    EXF_TRY(h->b->finish(q, err));
    EXF_TRY(exf_hidden_settle(h, err));
    memcpy(h->lane[to], h->lane[from], bytes);
    for (int i = 0; i < 2; i++) h->buffer[i].valid = h->buffer[i].valid && h->buffer[i].lane != to;
out:
    return rc;
}

const float *exf_hidden_rows(exf_hidden *h, size_t lane, size_t row, size_t n, exf_queue *q)
{
    const float *stored = h->lane[lane] + row * h->width;
    if (!h->host_resident) return stored;
    h->buffer[0].valid = 0;
    h->b->copy(q, h->buffer[0].rows, stored, n * h->width * sizeof(float));
    return h->buffer[0].rows;
}
