/* session_ranks.c - a session of several ranks: that they agree, and which sequences each runs; see session.h. */
#include "run/session.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "base/version.h"
#include "pass/batch.h"
#include "weights/shared_chunks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- before any work -------------------------------------------------------------------------- */

/* Adds name and size of every file of the checkpoint; when it was modified differs between copies. */
static exf_code add_files(exf_text *t, const exf_model *m, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < exf_checkpoint_files(m->checkpoint); i++) {
        const char *path = exf_checkpoint_path(m->checkpoint, i), *slash = strrchr(path, '/');
        const char *size = strstr(exf_checkpoint_state(m->checkpoint, i), ", "), *end = size ? strstr(size + 2, ", ") : NULL;
        rc = exf_text_addf(t, err, "model file %s: %.*s\n", slash ? slash + 1 : path, end ? (int)(end - size) - 2 : 0,
                           end ? size + 2 : "");
    }
    return rc;
}

/* Lists what ranks must have in common, a line each. */
static exf_code describe(exf_text *t, const exf_session *s, const exf_recipe *r, exf_err *err)
{
    const char *whole = r->shard_text ? NULL : strstr(s->corpus->shard, "of ");
    exf_code rc;
    EXF_TRY(exf_text_addf(t, err, "program: %s (commit %s)\n", exf_release(), exf_commit()));
    if (!r->n_shards || r->shard_text) EXF_TRY(exf_recipe_text(r, NULL, t, err)); /* else each rank has a shard of its own */
    EXF_TRY(exf_text_addf(t, err, "model config: sha256 %s\n", s->model->config_sha256));
    EXF_TRY(add_files(t, s->model, err));
    EXF_TRY(exf_text_addf(t, err, "manifest: sha256 %s\ntokenizer: sha256 %s\ntokens: digest %s\n", s->corpus->manifest_sha256,
                          s->corpus->tokenizer_sha256, whole ? whole : s->corpus->tokens_digest));
    EXF_TRY(exf_text_addf(t, err, "device: %s (%s), %s\n", s->backend->name, s->backend->device(), exf_compute_name(s->compute)));
out:
    return rc;
}

exf_code exf_session_agree(const exf_session *s, const exf_recipe *r, exf_err *err)
{
    exf_text t = {0};
    exf_code rc;
    if (!r->job) return EXF_OK;
    EXF_TRY(describe(&t, s, r, err));
    rc = exf_ranks_same(r->job, t.s, err);
out:
    exf_text_free(&t);
    return rc;
}

exf_code exf_session_same_weights(const exf_session *s, exf_err *err)
{
    exf_text parts = {0};
    exf_code rc;
    if (!s->ranks || !s->model->identity) return EXF_OK;
    EXF_TRY(exf_weight_identity_list(s->model->identity, &parts, err));
    for (size_t i = 0; i < parts.len; i++)
        if (parts.s[i] == ' ') parts.s[i] = '\n'; /* a line for each part, of which the first that differs is named */
    rc = exf_ranks_same(s->ranks, parts.s ? parts.s : "", err);
    if (rc != EXF_OK) exf_err_prefix(err, "weights: ");
out:
    exf_text_free(&parts);
    return rc;
}

/* ---- who does what ------------------------------------------------------------------------------ */

enum { MOST_LINES = 16 }; /* ranks that are told one by one */

static void tell_rank(const exf_session *s, int rank, const size_t *first, const char *device)
{
    exf_place p = exf_ranks_place_of(s->ranks, rank);
    size_t tokens = exf_part_row(&s->batch, first[rank + 1]) - exf_part_row(&s->batch, first[rank]);
    exf_log_info("rank %d on %s: %s; %zu sequences, %zu tokens", rank, p.host, device, first[rank + 1] - first[rank], tokens);
}

/* Tells how the run is dealt, and what each rank computes with. */
static exf_code tell(const exf_session *s, const exf_recipe *r, const size_t *first, exf_err *err)
{
    exf_place own = exf_ranks_place(s->ranks);
    char device[256];
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    exf_ranks_gathered g;
    if (s->backend->gpu)
        snprintf(device, sizeof device, "GPU %s of the node (%s)", visible ? visible : "0", s->backend->device());
    else
        snprintf(device, sizeof device, "%d threads", r->threads > 0 ? (int)r->threads : exf_default_threads());
    exf_code rc = exf_ranks_gather(s->ranks, device, strlen(device) + 1, &g, err);
    if (rc != EXF_OK) return rc;
    if (g.size) exf_log_info("ranks: %d on %d nodes", own.size, own.n_nodes);
    for (int i = 0; i < g.size && i < MOST_LINES; i++) tell_rank(s, i, first, g.data + g.offset[i]);
    if (g.size > MOST_LINES) exf_log_info("ranks %d to %d likewise", MOST_LINES, g.size - 1);
    exf_ranks_gathered_free(&g);
    return EXF_OK;
}

static exf_code check_ranks(void *self, exf_err *err)
{
    return exf_ranks_check(self, err);
}

/* Makes a text of the files that this rank reads: those at the same paths on another node are others, and so are copies. */
static exf_code files_digest(char hex[EXF_SHA256_HEX], const exf_checkpoint *c, exf_err *err)
{
    exf_hash *h = NULL;
    exf_code rc;
    EXF_TRY(exf_hash_new(&h, err));
    for (size_t i = 0; i < exf_checkpoint_files(c); i++) EXF_TRY(exf_hash_add_text(h, exf_checkpoint_state(c, i), err));
    rc = exf_hash_end(h, hex, err);
    h = NULL;
out:
    exf_hash_free(h);
    return rc;
}

/* A GPU reads a layer ahead; on the CPU a rank has at most eight threads at it. */
enum { GPU_SLOTS = EXF_SHARED_SLOTS, CPU_SLOTS = 8 };

exf_code exf_session_share(exf_session *s, const exf_recipe *r, exf_err *err)
{
    exf_place p = exf_ranks_place(r->job);
    int slots = s->backend->gpu ? GPU_SLOTS : CPU_SLOTS;
    exf_code rc;
    if (p.local_size < 2 || p.local_size > EXF_SHARED_MEMBERS) return EXF_OK;
    EXF_TRY(exf_ranks_window_new(&s->window, r->job, exf_shared_chunks_bytes(slots), err));
    s->shares = r->job;
    exf_shared_memory m = {.memory = s->window.at, .slots = slots, .member = p.local_rank, .members = p.local_size,
                           .check = check_ranks, .self = r->job};
    EXF_TRY(files_digest(m.files, s->model->checkpoint, err));
    rc = exf_shared_chunks_open(&s->shared, &m, s->backend, err);
out:
    return rc;
}

void exf_session_unshare(exf_session *s)
{
    exf_shared_chunks_close(s->shared);
    if (s->shares) exf_ranks_window_free(&s->window, s->shares);
}

exf_code exf_session_deal(exf_session *s, const exf_recipe *r, const size_t *group_of, exf_err *err)
{
    exf_place p = exf_ranks_place(r->job);
    size_t *first = NULL;
    exf_code rc;
    s->part = s->batch;
    if (!r->job || r->dry_run) return EXF_OK;
    s->ranks = r->job;
    EXF_TRY(exf_mem_new(&first, (size_t)p.size + 1, sizeof *first, "ranks", err));
    EXF_TRY(exf_deal(first, &s->batch, group_of, (size_t)p.size, err));
    s->first_sequence = first[p.rank];
    s->first_row = exf_part_row(&s->batch, s->first_sequence);
    EXF_TRY(exf_batch_part(&s->part, &s->part_span, &s->batch, s->first_sequence, first[p.rank + 1], err));
    EXF_TRY(tell(s, r, first, err));
    rc = exf_session_share(s, r, err);
out:
    exf_mem_free(first);
    return rc;
}

exf_code exf_session_tell_bytes(exf_ranks *job, uint64_t weight_bytes, exf_err *err)
{
    exf_ranks_gathered g;
    char bytes[16];
    exf_code rc = EXF_OK;
    if (!job) return EXF_OK;
    rc = exf_ranks_gather(job, &weight_bytes, sizeof weight_bytes, &g, err);
    if (rc != EXF_OK) return rc;
    for (int i = 0; i < g.size && i < MOST_LINES; i++) {
        uint64_t own;
        memcpy(&own, g.data + g.offset[i], sizeof own);
        exf_log_info("rank %d on %s: %s (%" PRIu64 " bytes) of weights read", i, exf_ranks_place_of(job, i).host,
                     exf_human_bytes(bytes, sizeof bytes, (double)own), own);
    }
    exf_ranks_gathered_free(&g);
    return EXF_OK;
}
