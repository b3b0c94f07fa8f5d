/* artifact_capture.h - reads and writes captures: routed expert outputs of chosen layers on disk
 * (artifact_capture.c), from which exfold-accumulate makes statistics later. */
#ifndef EXF_ARTIFACT_ARTIFACT_CAPTURE_H
#define EXF_ARTIFACT_ARTIFACT_CAPTURE_H
#include "artifact/artifact.h"
#include "artifact/sequences.h"

typedef struct {
    exf_h5 *h;
    exf_run_shape shape;
    int n_layers;
    int32_t *layer_number;     /* [n_layers]; borrowed when writing, owned when reading */
    exf_provenance provenance; /* reading only */
    exf_sequence_list sequences; /* reading only, in order of their rows; unknown in version 1 */
    int has_stream;              /* 1: rows have the energy of the residual stream after the layer */
} exf_capture_file;

/* Creates a capture and makes room for every layer; rows may then come in any order. sequences: in
 * order of their rows; NULL: unknown, and only statistics that need no sequences can be made. */
exf_code exf_capture_create(exf_capture_file *f, const char *target, int force, const exf_run_shape *shape, int32_t *layer_numbers,
                            int n_layers, const exf_sequence_list *sequences, const exf_provenance *p, exf_err *err) EXF_CHECKED;
/* The same in a temporary of that path, which stays there unless it is committed (exf_h5_create_at()).  goes_on: rows
 * that are in it stay; exf_capture_keep_layer() takes them. */
exf_code exf_capture_create_at(exf_capture_file *f, const char *target, int force, const char *temporary, int goes_on,
                               const exf_run_shape *shape, int32_t *layer_numbers, int n_layers,
                               const exf_sequence_list *sequences, const exf_provenance *p, exf_err *err) EXF_CHECKED;
/* CRC-32s of what was written of a layer, for a record of it: one list for each of its datasets, the file's own. */
enum { EXF_CAPTURE_PARTS = 4 };
typedef struct {
    const char *name;
    uint32_t *crc; /* [n] */
    size_t n;
} exf_capture_checksums;
int exf_capture_parts(const exf_capture_file *f); /* datasets of a layer: one more with energies of the stream */
exf_code exf_capture_layer_checksums(exf_capture_file *f, int layer, exf_capture_checksums out[EXF_CAPTURE_PARTS],
                                     exf_err *err) EXF_CHECKED;
/* Compares the rows of a layer that are in the file with its checksums, which the caller has set; EXF_FORMAT. */
exf_code exf_capture_keep_layer(exf_capture_file *f, int layer, exf_err *err) EXF_CHECKED;
/* Hands rows that were put so far to the system; then returns once they are on the disk, beside other calls too. */
exf_code exf_capture_settle(exf_capture_file *f, exf_err *err) EXF_CHECKED;
exf_code exf_capture_sync(const exf_capture_file *f, exf_err *err) EXF_CHECKED;
/* Writes rows [row, row + n) of one layer: ids [n, K], weights [n, K], outputs [n, K, H].  Not thread-safe. */
exf_code exf_capture_put(exf_capture_file *f, int layer, int64_t row, int64_t n, const int32_t *ids, const float *weights,
                         const float *outputs, exf_err *err) EXF_CHECKED;
/* Makes room for the squared norms of the residual stream, right after exf_capture_create(), and writes those of rows. */
exf_code exf_capture_add_stream(exf_capture_file *f, exf_err *err) EXF_CHECKED;
exf_code exf_capture_put_stream(exf_capture_file *f, int layer, int64_t row, int64_t n, const double *stream_sq,
                                exf_err *err) EXF_CHECKED;
/* Adds facts to the provenance. */
exf_code exf_capture_add_facts(exf_capture_file *f, const exf_provenance *p, exf_err *err) EXF_CHECKED;
exf_code exf_capture_commit(exf_capture_file *f, exf_err *err) EXF_CHECKED;
void exf_capture_abort(exf_capture_file *f);

exf_code exf_capture_open(exf_capture_file *f, const char *path, exf_err *err) EXF_CHECKED;
/* Reads the same rows; ids must be in [0, E) and distinct within a row, or -1 with weight and outputs of 0 in all slots but
 * one or more, numbers finite (EXF_FORMAT naming layer and row). */
exf_code exf_capture_get(exf_capture_file *f, int layer, int64_t row, int64_t n, int32_t *ids, float *weights, float *outputs,
                         exf_err *err) EXF_CHECKED;
/* Reads the squared norms of the residual stream of a file that has them: finite and at least 0 (EXF_FORMAT). */
exf_code exf_capture_get_stream(exf_capture_file *f, int layer, int64_t row, int64_t n, double *stream_sq,
                                exf_err *err) EXF_CHECKED;
void exf_capture_close(exf_capture_file *f);
#endif
