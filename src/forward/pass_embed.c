/* pass_embed.c - fills the first lane's hidden states with the tokens' embeddings (pass.h).  The
 * other lanes copy them at the first router (layer_step.c). */
#include "forward/pass.h"

#include "base/mem.h"
#include "mixers/residual.h"

#include <string.h>

enum { CHUNK = 1024 }; /* rows that the CPU uploads at a time */

/* Writes a token's embedding to every residual stream of its row. */
static void embed_rows(const exf_pass *p, float *rows, size_t first, size_t n, const float *table)
{
    size_t h = (size_t)p->model->arch.d_model, streams = (size_t)p->model->arch.residual.streams;
    for (size_t t = 0; t < n; t++)
        for (size_t k = 0; k < streams; k++)
            memcpy(rows + (t * streams + k) * h, table + (size_t)p->batch->ids[first + t] * h, h * sizeof *rows);
}

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
        exf_hidden_give(&p->hidden, 0, i, EXF_HIDDEN_FILL, q);
    }
    return p->b->finish(q, err);
}

/* Looks tokens up on the CPU; the table is read once and freed. */
static exf_code embed_host(exf_pass *p, exf_err *err)
{
    float *table = NULL, *rows = NULL;
    size_t width = exf_row_width(&p->model->arch);
    exf_code rc;
    EXF_TRY(exf_mem_new(&table, exf_model_count(p->model, EXF_W_EMBED, -1), sizeof(float), "embedding", err));
    EXF_TRY(exf_mem_new(&rows, CHUNK * width, sizeof(float), "embedded tokens", err));
    EXF_TRY(exf_host_loader_embedding(p->host_loader, table, p->options->threads, err));
    exf_progress_add((double)exf_model_role_bytes(p->model, EXF_W_EMBED, -1));
    for (size_t t = 0; t < p->batch->n_tokens; t += CHUNK) {
        size_t n = p->batch->n_tokens - t < CHUNK ? p->batch->n_tokens - t : CHUNK;
        embed_rows(p, rows, t, n, table);
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
