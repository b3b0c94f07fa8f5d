/* shards.h - tells a part of a corpus from the whole, by the facts of a file.
 *
 * A run over shard I of N of a corpus has the fact data.shard, "I/N of DIGEST": the digest is that of the whole corpus'
 * tokens.  A capture has it in its provenance, statistics have it in their origin, part.<i>.shard of each shard that was
 * added up, and tables of a part have the fact data.part, which all that is made from them copies.  A file whose shards
 * are all there has no trace of them in its provenance: it is the file of one run over the whole. */
#ifndef EXF_ARTIFACT_SHARDS_H
#define EXF_ARTIFACT_SHARDS_H
#include "artifact/provenance.h"
#include "artifact/sequences.h"
#include "base/text.h"

#define EXF_PART_FACT "data.part"

/* A capture, a statistics file, or tables. */
typedef struct {
    const char *path; /* for messages */
    const exf_provenance *provenance;
    const exf_provenance *origin; /* origin of a statistics file; NULL: another file */
    const exf_sequence_list *sequences; /* for joining: never NULL; without lengths: unknown */
    const char *digest; /* of a statistics file's payload; NULL: another file, or not known */
} exf_facts_part;

/* Refuses files that are not shards of the same cut, once each: EXF_MODEL naming both files of a shard that is there twice
 * or of two cuts of one corpus, or the shards that are missing, with the command that makes them.  partial: shards may
 * be missing.  Data that are no shards are not looked at. */
exf_code exf_shards_check(const exf_facts_part *file, size_t n, int partial, exf_err *err) EXF_CHECKED;
/* Adds which part of its corpora a file is of, "shards 1, 2 of 3 of corpus 0123456789abcdef"; nothing where it is of the
 * whole. */
exf_code exf_part_words(exf_text *out, const exf_facts_part *file, exf_err *err) EXF_CHECKED;
/* Sets *same to 1 if all data of both files are shards of one corpus: a sequence that both have is there twice. */
exf_code exf_shards_of_one_corpus(const exf_facts_part *a, const exf_facts_part *b, int *same, exf_err *err) EXF_CHECKED;
#endif
