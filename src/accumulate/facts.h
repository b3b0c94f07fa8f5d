/* facts.h - joins provenance of statistics: facts that must agree between parts, facts that add
 * up, and facts that only record how a file was made. */
#ifndef EXF_ACCUMULATE_FACTS_H
#define EXF_ACCUMULATE_FACTS_H
#include "artifact/shards.h"

/* Joins the facts of n parts over different data into those of one run over all of it, so
 * that the union of the data gives the same file, however it was cut:
 *   data.sequences, data.tokens, data.domains   added up, domains by name
 *   data.sequences_digest                       of the sorted sequences
 *   data.seed, data.min_tokens                  if all parts agree, else in *origin
 *   all else                                    equal in all parts, or EXF_MODEL naming both texts
 * and, in *origin, per part i in order of its tokens: part.<i>.manifest_sha256,
 * part.<i>.tokens_digest, of a shard part.<i>.shard (of recorded hidden states: part.<i>.moe_inputs_sha256), and of
 * statistics that were a file of their own part.<i>.statistics_digest.  Joining joined parts
 * gives the same as joining all parts at once.
 * A sequence that two parts have is EXF_MODEL: it would count twice; shards of one corpus have it where the corpus has it
 * twice.  So are parts of two data.max_tokens: the same documents, cut elsewhere, are other sequences.
 * sequences: of all parts, sorted.  If it has no lengths, because one part's are unknown, the
 * facts are those of exf_provenance_join(), and *origin has none. */
exf_code exf_facts_join(exf_provenance *out, exf_provenance *origin, const exf_facts_part *part, size_t n,
                        const exf_sequence_list *sequences, exf_err *err) EXF_CHECKED;
#endif
