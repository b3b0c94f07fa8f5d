/* accumulate.h - adds up sums of expert outputs and writes them as `statistics`; joins statistics of different data.
 *
 * The accumulator is an observer.  A forward pass (exf_accumulator_observer) or capture files (exf_accumulate_captures)
 * feed it; both give the same bits, since the sums are exact and the terms the same.  A layer is written as soon as it is
 * complete, so memory is one layer's sums per worker.
 *
 * The blocks of a sequence must come one after the other on one worker (EXF_INTERNAL otherwise), as both sources give
 * them, so that a sequence's own sums are known at its end: they are the units of the jackknife.  A third source, what other
 * programs record (accumulate_record.c), shows them in any order. */
#ifndef EXF_ACCUMULATE_ACCUMULATE_H
#define EXF_ACCUMULATE_ACCUMULATE_H
#include "accumulate/accumulate_options.h"
#include "accumulate/smallest_keys.h"
#include "artifact/artifact_capture.h"
#include "artifact/data.h"
#include "accumulate/statistics.h"
#include "kernels/statistics/layer_sums.h"
#include "pass/forward.h"
#include "pass/resume.h"
#include "ranks/ranks.h"

/* ---- the accumulator ---------------------------------------------------------------------------- */

typedef struct exf_accumulator exf_accumulator;

/* Returns the bytes of GPU memory that an accumulator holds; 0 on the CPU. */
struct exf_backend; /* kernels/backend.h */
uint64_t exf_accumulate_device_memory(const struct exf_backend *b, const exf_run_shape *shape, const exf_accumulate_options *o);

/* Returns what its pass requires. */
exf_demand exf_accumulate_demand(const struct exf_backend *b, const exf_run_shape *shape, const exf_accumulate_options *o);

/* Settings of an accumulator that is to be made. */
typedef struct {
    const char *target; /* statistics file; NULL: none is written, as for a sample of a pass */
    int force;
    const exf_run_shape *shape;
    const int32_t *layer_number; /* [n_layers] layers to accumulate; others are ignored */
    int n_layers;
    /* Parts from which the rows come, one after the other: their facts, to which those of the
     * accumulate stage are added, and their sequences in order.  If the sequences of one part are
     * unknown, no sums over sequences are made. */
    const exf_facts_part *parts;
    size_t n_parts;
    const exf_accumulate_options *options;
    exf_ranks *ranks;   /* of which the pass is one, with rows `own` of the parts; NULL: one process.  Only
                         * rank 0 has a target; the observer's ends of sweeps and layers are then collective */
    exf_run_rows own;
    exf_resume *resume; /* the run's resume point, from which finished layers are taken; NULL: none */
    exf_layer_consumer consumer; /* used on the rank that writes the file, or where none is written */
    int mixed;          /* 1: the blocks of a sequence, each in host memory, come in any order and with others' between them */
} exf_accumulator_plan;

/* Starts the statistics file. */
exf_code exf_accumulator_new(exf_accumulator **out, const exf_accumulator_plan *plan, exf_err *err) EXF_CHECKED;
/* Returns the observer for a lane; it is valid as long as the accumulator. */
const exf_observer *exf_accumulator_observer(exf_accumulator *a);
/* Adds facts to the file's provenance that are known only after the pass; collective. */
exf_code exf_accumulator_add_facts(exf_accumulator *a, const exf_provenance *p, exf_err *err) EXF_CHECKED;
/* Moves the file into place; collective.  digest: rank 0 gets that of the file's payload; may be NULL. */
exf_code exf_accumulator_commit(exf_accumulator *a, char digest[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
/* Frees the accumulator and deletes a file that was not committed; NULL is allowed. */
void exf_accumulator_free(exf_accumulator *a);

/* Makes statistics in `target` from one or more capture files of the same model, settings and
 * layers, over different data.  Files are read twice if vectors are wanted.  A capture has only
 * outputs of experts that tokens were routed to: EXF_USAGE for common input.  digest: of the result's payload; may be NULL. */
exf_code exf_accumulate_captures(const char *const *paths, size_t n_paths, const char *target, int force,
                                 const exf_accumulate_options *o, char digest[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;

/* ---- statistics of different data ----------------------------------------------------------------- */

/* Adds the sums of n statistics files of the same model, tokenizer, settings and layers into
 * `target`.  In whatever order or steps files are merged, the result has the payload digest
 * of one run over the union of their data; /origin lists the parts with their digests.
 *
 * Shards of a corpus (artifact/data.h) must all be there, once each; partial: some may be missing.
 * EXF_MODEL names both files and what is wrong: a fact that differs, with both texts; a
 * sequence that two of them have; sequences known in only some of the files (version 1);
 * vector sums or those of a norm head, which add up within one run alone, over what all of its data chose.
 * other_weights: 1 takes files whose digests of weights differ, and says of which parts in the fact EXF_MIXED_WEIGHTS_FACT;
 * architectures must be the same.  digest: of the result's payload; may be NULL. */
exf_code exf_merge_statistics(const char *const *paths, size_t n, const char *target, int force, int partial,
                              int other_weights, char digest[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;

/* Joins the facts of n parts over different data into those of one run over all of it, so
 * that the union of the data gives the same file, however it was cut:
 *   data.sequences, data.tokens, data.domains   added up, domains by name
 *   data.sequences_digest                       of the sorted sequences
 *   data.seed, data.min_tokens                  if all parts agree, else in *origin
 *   all else                                    equal in all parts, or EXF_MODEL naming both texts
 * and, in *origin, per part i in order of its tokens: part.<i>.manifest_sha256,
 * part.<i>.tokens_digest, of a shard part.<i>.shard (of recorded hidden states: part.<i>.moe_inputs_sha256), and of
 * statistics that were a file of their own part.<i>.statistics_digest; settings on which all parts agree.  Joining joined parts
 * gives the same as joining all parts at once.
 * A sequence that two parts have is EXF_MODEL: it would count twice; shards of one corpus have it where the corpus has it
 * twice.  So are parts of two data.max_tokens: the same documents, cut elsewhere, are other sequences.
 * sequences: of all parts, sorted.  If it has no lengths, because one part's are unknown, the
 * facts are those of exf_provenance_join(), and *origin has none. */
exf_code exf_facts_join(exf_provenance *out, exf_provenance *origin, const exf_facts_part *part, size_t n,
                        const exf_sequence_list *sequences, int other_weights, exf_err *err) EXF_CHECKED;
#endif
