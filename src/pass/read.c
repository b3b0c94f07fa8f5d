/* read.c - reads the weights of a pass: of this layer and, beside its work, of the next; and embeds the tokens. */
#include "pass/forward_internal.h"

#include "base/mem.h"

#include <string.h>

/* ---- weights ------------------------------------------------------------------------------ */

/* Loads the next part of a layer's experts, on a GPU that cannot hold all of them. */
static exf_code next_part(void *self, exf_err *err)
{
    exf_pass *p = self;
    double start = exf_clock();
    exf_code rc = exf_weight_loader_next(p->loader, &p->weights_now, err);
    p->parts_waited += exf_clock() - start;
    return rc;
}

exf_code exf_pass_open_weights(exf_pass *p, const exf_pass_plan *plan, exf_err *err)
{
    exf_weight_loader_options loader = plan->loader;
    loader.shared = p->options->shared_chunks;
    p->reads = plan->reads;
    p->parts = (exf_expert_parts){p, next_part, loader.part_experts, &p->parts_waited};
    return p->b->gpu ? exf_weight_loader_open(&p->loader, p->model, p->b, p->compute, &loader, err)
                     : exf_host_loader_open(&p->host_loader, p->model, &loader, err);
}

void exf_pass_close_weights(exf_pass *p)
{
    exf_weight_loader_times times = {.reading = 0};
    exf_weight_loader_close(p->loader, &times);
    p->report->own_bytes = p->host_loader ? exf_host_loader_bytes(p->host_loader) : times.bytes;
    p->report->reading = times.reading;
    p->report->sending = times.sending;
    p->report->readers = times.readers;
    exf_host_loader_close(p->host_loader);
    exf_layer_weights_free(&p->weights_now);
}

exf_code exf_pass_weights(exf_pass *p, int layer, exf_err *err)
{
    uint64_t table = layer < 0 ? exf_model_role_bytes(p->model, EXF_W_EMBED, -1) : 0;
    uint64_t bytes = layer == EXF_LAYER_EMBED ? table : exf_model_layer_bytes(p->model, layer) - table;
    exf_progress_turn(EXF_WORK_READ);
    exf_code rc = p->loader ? exf_weight_loader_next(p->loader, &p->weights_now, err)
                            : exf_host_loader_layer(p->host_loader, &p->weights_now, p->options->threads, err);
    exf_progress_add((double)bytes);
    return rc;
}

double exf_pass_waited(const exf_pass *p)
{
    return p->host_loader ? exf_host_loader_waited(p->host_loader) : 0;
}

/* ---- embedding ------------------------------------------------------------------------------ */

enum { CHUNK = 1024 }; /* rows that the CPU uploads at a time */

/* Uploads the table as it is stored and looks tokens up on the GPU. */
static exf_code embed_gpu(exf_pass *p, exf_err *err)
{
    const exf_architecture *a = &p->model->arch;
    exf_queue *q = p->space[0].q;
    exf_code rc = exf_pass_weights(p, EXF_LAYER_EMBED, err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < p->hidden.n_groups; i++) {
        const exf_sequence_group *g = &p->hidden.group[i];
        float *rows = exf_hidden_take(&p->hidden, 0, i, EXF_HIDDEN_FILL, q);
        p->b->gpu->embed(q, rows, exf_matrix_of(&p->weights_now, EXF_W_EMBED), p->tokens_device + g->row, g->n_rows, a->d_model,
                         a->residual.streams);
        if (a->embed_scale > 0) p->b->scale(q, rows, g->n_rows * exf_row_width(a), (float)a->embed_scale, NULL);
        exf_hidden_give(&p->hidden, 0, i, EXF_HIDDEN_FILL, q);
    }
    return p->b->finish(q, err);
}

/* Looks tokens up on the CPU, scaled where the model says so, for every residual stream; the table is read once and freed. */
static exf_code embed_host(exf_pass *p, exf_err *err)
{
    const exf_architecture *a = &p->model->arch;
    float *table = NULL, *rows = NULL;
    size_t h = (size_t)a->d_model, streams = (size_t)a->residual.streams, width = exf_row_width(a);
    exf_code rc;
    EXF_TRY(exf_mem_new(&table, exf_model_count(p->model, EXF_W_EMBED, -1), sizeof(float), "embedding", err));
    EXF_TRY(exf_mem_new(&rows, CHUNK * width, sizeof(float), "embedded tokens", err));
    EXF_TRY(exf_host_loader_embedding(p->host_loader, table, p->options->threads, err));
    exf_progress_add((double)exf_model_role_bytes(p->model, EXF_W_EMBED, -1));
    for (size_t t = 0; t < p->batch->n_tokens; t += CHUNK) {
        size_t n = p->batch->n_tokens - t < CHUNK ? p->batch->n_tokens - t : CHUNK;
        for (size_t i = 0; i < n * streams; i++)
            memcpy(rows + i * h, table + (size_t)p->batch->ids[t + i / streams] * h, h * sizeof *rows);
        for (size_t i = 0; a->embed_scale > 0 && i < n * width; i++) rows[i] *= (float)a->embed_scale;
        p->b->upload(p->space[0].q, p->hidden.lane[0] + t * width, rows, n * width * sizeof(float));
        EXF_TRY(p->b->finish(p->space[0].q, err));
    }
out:
    exf_mem_free(table);
    exf_mem_free(rows);
    return rc;
}

exf_code exf_pass_embed(exf_pass *p, exf_err *err)
{
    double start = exf_clock();
    exf_code rc = p->loader ? embed_gpu(p, err) : embed_host(p, err);
    p->joined = 1;
    p->report->embed += exf_clock() - start;
    return rc;
}
