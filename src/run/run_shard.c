/* run_shard.c - see run_shard.h. */
#include "run/run_shard.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "capture/capture.h"
#include "pass/batch.h"
#include "ranks/ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MOST_SHARDS = 65536 };

static int parse(const char *text, int *index, int *of)
{
    int used = 0;
    return sscanf(text, "%9d/%9d%n", index, of, &used) == 2 && !text[used] && strspn(text, "0123456789/") == strlen(text) &&
           *index >= 1 && *index <= *of && *of <= MOST_SHARDS;
}

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
    if (!r->shard_text) return EXF_OK;
    if (!parse(r->shard_text, &r->shard, &r->n_shards))
        return exf_fail(err, EXF_USAGE, "--shard: \"%s\" is no I/N with 1 <= I <= N <= %d, such as 2/8", r->shard_text,
                        MOST_SHARDS);
    return r->export_path ? EXF_OK : use_folder(r, err); /* a file that was named is written where it was named */
}

exf_code exf_run_shard_of_rank(exf_recipe *r, exf_err *err)
{
    exf_place p = exf_ranks_place(r->job);
    const char *option = r->shard_text ? "--shard" : r->moe_inputs ? "--moe-inputs" : r->export_path ? "--export" : NULL;
    exf_text text = {0};
    exf_code rc;
    if (p.size < 2) return EXF_OK;
    if (option)
        return exf_fail(err, EXF_USAGE, "started as %d ranks, of which each captures a shard of the data: %s goes with one process",
                        p.size, option);
    EXF_TRY(exf_recipe_text(r, NULL, &text, err));
    EXF_TRY(exf_ranks_same(r->job, text.s, err)); /* before their output directories differ */
    r->shard = p.rank + 1;
    r->n_shards = p.size;
    EXF_TRY(use_folder(r, err));
    exf_log_info("ranks: %d on %d nodes, rank 0 captures shard 1 of %d, rank %d shard %d", p.size, p.n_nodes, p.size, p.size - 1,
                 p.size);
out:
    exf_text_free(&text);
    return rc;
}

exf_code exf_run_shard_check(const exf_recipe *r, const exf_accumulate_options *o, exf_err *err)
{
    if (!r->n_shards) return EXF_OK;
    if (r->basis_only)
        return exf_fail(err, EXF_USAGE, "--shard: a basis is made from all of the data: run --basis-only without it");
    if ((o->diagonal || o->lowrank) && !r->basis_path)
        return exf_fail(err, EXF_USAGE,
                        "--shard: vector sums of shards add over one basis only: run exfold-calibrate RECIPE --basis-only first, "
                        "then give each shard --basis FILE");
    return EXF_OK;
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
