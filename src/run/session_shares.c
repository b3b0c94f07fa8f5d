/* session_shares.c - which part of the data a process runs: shards of a job array, parts of ranks, what ranks must have in
 * common, and the weights that those of a node share; see session.h. */
#include "run/session.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "base/text.h"
#include "pass/batch.h"
#include "weights/shared_chunks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- shards ------------------------------------------------------------------------------------ */

enum { MOST_SHARDS = 65536 };

static exf_code use_folder(exf_recipe *r, exf_err *err)
{
    char name[48], *folder = NULL;
    exf_code rc;
    snprintf(name, sizeof name, "shard-%d-of-%d", r->shard, r->n_shards);
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_path_join(&folder, r->output_directory, name, err));
    exf_mem_free(r->output_directory);
    r->output_directory = folder;
out:
    return rc;
}

exf_code exf_run_shard_begin(exf_recipe *r, exf_err *err)
{
    const char *text = r->shard_text;
    int used = 0;
    if (!text) return EXF_OK;
    if (sscanf(text, "%9d/%9d%n", &r->shard, &r->n_shards, &used) != 2 || text[used] ||
        strspn(text, "0123456789/") != strlen(text) || r->shard < 1 || r->shard > r->n_shards || r->n_shards > MOST_SHARDS)
        return exf_fail(err, EXF_USAGE, "--shard: \"%s\" is no I/N with 1 <= I <= N <= %d, such as 2/8", text, MOST_SHARDS);
    return r->export_path ? EXF_OK : use_folder(r, err); /* a named file has no folder */
}

exf_code exf_run_shard_of_rank(exf_recipe *r, exf_err *err)
{
    exf_place p = exf_ranks_place(r->job);
    const char *option = r->shard_text ? "--shard" : r->export_path ? "--export" : NULL;
    exf_text text = {0};
    exf_code rc;
    if (p.size < 2) return EXF_OK;
    if (option)
        return exf_fail(err, EXF_USAGE, "started as %d ranks, of which each captures a shard of the data: %s goes with one process",
                        p.size, option);
    EXF_TRY(exf_recipe_text(r, NULL, &text, err));
    EXF_TRY(exf_ranks_same(r->job, text.s, err)); /* before each gets an output directory of its own */
    r->shard = p.rank + 1;
    r->n_shards = p.size;
    EXF_TRY(use_folder(r, err));
    exf_log_info("ranks: %d on %d nodes, rank 0 captures shard 1 of %d, rank %d shard %d", p.size, p.n_nodes, p.size, p.size - 1,
                 p.size);
out:
    exf_text_free(&text);
    return rc;
}

exf_code exf_run_shard_take(exf_corpus *c, const exf_recipe *r, exf_err *err)
{
    exf_batch all = {.ids = NULL};
    size_t *first = NULL, n = c->n_sequences;
    uint64_t tokens = c->n_tokens;
    exf_code rc;
    if (!r->n_shards) return EXF_OK;
    EXF_TRY(exf_batch_of_corpus(&all, c, err));
    EXF_TRY(exf_mem_new(&first, (size_t)r->n_shards + 1, sizeof *first, "shards", err));
    rc = exf_deal(first, &all, NULL, (size_t)r->n_shards, err);
    if (rc == EXF_USAGE && r->shard_text) exf_err_prefix(err, "--shard %s: ", r->shard_text);
    if (rc != EXF_OK) goto out;
    EXF_TRY(exf_corpus_take_shard(c, first[r->shard - 1], first[r->shard], r->shard, r->n_shards, err));
    exf_log_info("shard %d/%d: %zu of %zu sequences, %" PRIu64 " of %" PRIu64 " tokens", r->shard, r->n_shards, c->n_sequences, n,
                 c->n_tokens, tokens);
out:
    exf_mem_free(first);
    exf_mem_free((void *)(uintptr_t)all.span);
    return rc;
}

/* ---- that ranks agree --------------------------------------------------------------------------- */

/* Compares a text with a line for each thing that ranks must have in common. */
exf_code exf_session_agree(const exf_session *s, const exf_recipe *r, exf_err *err)
{
    const exf_corpus *c = s->corpus;
    const exf_checkpoint *files = s->model->checkpoint;
    const char *whole = r->shard_text ? NULL : strstr(c->shard, "of ");
    exf_text t = {0};
    exf_code rc;
    if (!r->job) return EXF_OK;
    exf_text_appendf(&t, "program: %s (commit %s)\n", exf_release(), exf_commit());
    if (!r->n_shards || r->shard_text) EXF_TRY(exf_recipe_text(r, NULL, &t, err)); /* else each rank has a shard of its own */
    exf_text_appendf(&t, "model config: sha256 %s\n", s->model->config_sha256);
    /* Name and size of every file of the checkpoint, but not when it was modified, which differs between copies. */
    for (size_t i = 0; i < files->n_files; i++) {
        const char *size = strstr(exf_file_state(files->file[i]->file), ", "), *end = size ? strstr(size + 2, ", ") : NULL;
        exf_text_appendf(&t, "model file %s: %.*s\n", exf_path_name(exf_st_path(files->file[i])),
                         end ? (int)(end - size) - 2 : 0, end ? size + 2 : "");
    }
    exf_text_appendf(&t, "manifest: sha256 %s\ntokenizer: sha256 %s, %s before a document\ntokens: digest %s\n",
                     c->manifest_sha256, c->tokenizer_sha256, c->tokenizer_bos, whole ? whole : c->tokens_digest);
    exf_text_appendf(&t, "device: %s (%s), %s\n", s->backend->name, s->backend->device(), exf_compute_name(s->compute));
    EXF_TRY(exf_text_end(&t, err));
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
    EXF_TRY(exf_weight_identity_list(s->model->identity, 0, &parts, err));
    for (size_t i = 0; i < parts.len; i++)
        if (parts.s[i] == ' ') parts.s[i] = '\n'; /* a line for each part; a message names the first that differs */
    rc = exf_ranks_same(s->ranks, parts.s ? parts.s : "", err);
    if (rc != EXF_OK) exf_err_prefix(err, "weights: ");
out:
    exf_text_free(&parts);
    return rc;
}

/* ---- who does what ------------------------------------------------------------------------------ */

enum { MOST_LINES = 16 }; /* ranks that are reported one by one */

/* Reports how the run is dealt, and what each rank computes with; first: sequences of the ranks, as exf_deal() gives them. */
static exf_code report_ranks(const exf_session *s, const exf_recipe *r, const size_t *first, exf_err *err)
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
    for (int i = 0; i < g.size && i < MOST_LINES; i++) {
        size_t tokens = exf_part_row(&s->batch, first[i + 1]) - exf_part_row(&s->batch, first[i]);
        exf_log_info("rank %d on %s: %s; %zu sequences, %zu tokens", i, exf_ranks_place_of(s->ranks, i).host, g.data + g.offset[i],
                     first[i + 1] - first[i], tokens);
    }
    if (g.size > MOST_LINES) exf_log_info("ranks %d to %d likewise", MOST_LINES, g.size - 1);
    exf_ranks_gathered_free(&g);
    return EXF_OK;
}

static exf_code check_ranks(void *self, exf_err *err)
{
    return exf_ranks_check(self, err);
}

/* Chunks of a window.  A GPU reads a layer ahead; on the CPU at most eight threads of a rank read. */
enum { GPU_SLOTS = EXF_SHARED_SLOTS, CPU_SLOTS = 8 };

exf_code exf_session_share(exf_session *s, const exf_recipe *r, exf_err *err)
{
    const exf_checkpoint *c = s->model->checkpoint;
    exf_place p = exf_ranks_place(r->job);
    int slots = s->backend->gpu ? GPU_SLOTS : CPU_SLOTS;
    exf_hash *h = NULL;
    exf_code rc;
    if (p.local_size < 2 || p.local_size > EXF_SHARED_MEMBERS) return EXF_OK;
    EXF_TRY(exf_ranks_window_new(&s->window, r->job, exf_shared_chunks_bytes(slots), err));
    s->shares = r->job;
    exf_shared_memory m = {.memory = s->window.at, .slots = slots, .member = p.local_rank, .members = p.local_size,
                           .check = check_ranks, .self = r->job};
    /* Ranks share chunks if their files have the same states; copies, and files at these paths on another node, have others. */
    EXF_TRY(exf_hash_new(&h, err));
    for (size_t i = 0; i < c->n_files; i++) EXF_TRY(exf_hash_add_text(h, exf_file_state(c->file[i]->file), err));
    rc = exf_hash_end(h, m.files, err);
    h = NULL;
    if (rc == EXF_OK) rc = exf_shared_chunks_open(&s->shared, &m, s->backend, err);
out:
    exf_hash_free(h);
    return rc;
}

exf_code exf_session_deal(exf_session *s, const exf_recipe *r, const size_t *group_of, exf_err *err)
{
    exf_place p = exf_ranks_place(r->job);
    size_t *first = NULL;
    exf_code rc;
    if (!r->job || r->dry_run) return EXF_OK;
    s->ranks = r->job;
    EXF_TRY(exf_mem_new(&first, (size_t)p.size + 1, sizeof *first, "ranks", err));
    EXF_TRY(exf_deal(first, &s->batch, group_of, (size_t)p.size, err));
    s->first_sequence = first[p.rank];
    s->first_row = exf_part_row(&s->batch, s->first_sequence);
    EXF_TRY(exf_batch_part(&s->part, &s->part_span, &s->batch, s->first_sequence, first[p.rank + 1], err));
    EXF_TRY(report_ranks(s, r, first, err));
    rc = exf_session_share(s, r, err);
out:
    exf_mem_free(first);
    return rc;
}

exf_code exf_session_tell_bytes(exf_ranks *job, uint64_t weight_bytes, exf_err *err)
{
    exf_ranks_gathered g;
    char bytes[16];
    if (!job) return EXF_OK;
    exf_code rc = exf_ranks_gather(job, &weight_bytes, sizeof weight_bytes, &g, err);
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
