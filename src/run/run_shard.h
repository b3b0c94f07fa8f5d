/* run_shard.h - a run over one shard of its data: --shard I/N.
 *
 * Shards are dealt by tokens (pass/batch.h).  Each has a folder of its own in the output directory, so that all tasks of a
 * job array can have the same recipe and run at the same time. */
#ifndef EXF_RUN_RUN_SHARD_H
#define EXF_RUN_RUN_SHARD_H
#include "capture/corpus.h"
#include "recipe/recipe.h"

/* Reads --shard, sets r->shard and r->n_shards, and makes shard-I-of-N in the output directory the output directory.
 * Does nothing without --shard.  EXF_USAGE for what is no I/N with 1 <= I <= N. */
exf_code exf_run_shard_begin(exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Of several ranks, which need not agree on anything but who does what, makes each take the shard of its number:
 * rank 0 shard 1.  EXF_USAGE with --shard, or with an output that is one file for all. */
exf_code exf_run_shard_of_rank(exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Refuses a shard whose sums could not be added to the others': vectors without a basis of all of the data, or of which
 * that basis is to be made. */
exf_code exf_run_shard_check(const exf_recipe *r, const exf_accumulate_options *o, exf_err *err) EXF_CHECKED;
/* Cuts the corpus to the shard and says so; does nothing without one. */
exf_code exf_run_shard_take(exf_corpus *c, const exf_recipe *r, exf_err *err) EXF_CHECKED;
#endif
