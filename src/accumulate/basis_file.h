/* basis_file.h - a basis is what the vector sums of a layer are added up over: the pairs that have vectors, the
 * low-rank basis Q and the grids (vector_sums.h).  An ordinary run makes its own from all of its data.  Made
 * first, as a file of its own (basis_file.c), it is given to the shards of a corpus: sums over one basis add.
 *
 * Its digest is the SHA-256 over, layer by layer in rising order, the layer's number, P, H and R (u64), then the
 * elements of pair, basis and grid and, with a norm head, q (u64) and its directions, all little endian.  Statistics
 * with vector sums or those of a norm head, however they were made, have it as the fact accumulate.basis_digest; so
 * has the basis' own file. */
#ifndef EXF_ACCUMULATE_BASIS_FILE_H
#define EXF_ACCUMULATE_BASIS_FILE_H
#include "artifact/artifact.h"
#include "artifact/data.h"
#include "accumulate/norm_sums.h"
#include "accumulate/vector_sums.h"

#define EXF_BASIS_FACT "accumulate.basis_digest"

/* Adds one layer to a running digest. */
exf_code exf_basis_hash(exf_hash *h, int layer_number, const exf_vector_sums *v, exf_err *err) EXF_CHECKED;

/* An open file. */
typedef struct {
    exf_h5 *h;
    exf_run_shape shape; /* of the run that made it */
    int n_layers;
    int32_t *layer_number;       /* [n_layers] */
    exf_sequence_list sequences; /* sorted: the data that it was made from */
    exf_provenance provenance;
    char digest[EXF_SHA256_HEX];
} exf_basis;

/* Opens a file and compares its digest with its contents.  EXF_FORMAT if it differs. */
exf_code exf_basis_open(exf_basis *b, const char *path, exf_err *err) EXF_CHECKED;
/* Reads a layer by the model's number: pair, basis and grid of v; all else is NULL.  A layer without pairs has
 * n_pairs 0.  EXF_MODEL for a layer that the file lacks.  The caller frees v. */
exf_code exf_basis_get(const exf_basis *b, int layer_number, exf_vector_sums *v, exf_err *err) EXF_CHECKED;
/* Reads the directions of a layer's norm head, which the caller frees; q 0: the file has none. */
exf_code exf_basis_get_norms(const exf_basis *b, int layer_number, exf_norm_sums *s, exf_err *err) EXF_CHECKED;
/* Refuses a basis that was not made for a run of these facts, layers and (sorted) sequences: of another model, with
 * other settings, or not from all of these sequences.  EXF_MODEL naming file, both values and the command that
 * makes it again. */
exf_code exf_basis_check(const exf_basis *b, const exf_provenance *run, const int32_t *layer_number, int n_layers,
                         const exf_sequence_list *sequences, exf_err *err) EXF_CHECKED;
void exf_basis_close(exf_basis *b); /* accepts zeroed memory */
#endif
