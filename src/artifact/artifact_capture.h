/* artifact_capture.h - reads and writes captures: routed expert outputs of chosen layers on disk
 * (artifact_capture.c), from which exfold-accumulate makes statistics later. */
#ifndef EXF_ARTIFACT_ARTIFACT_CAPTURE_H
#define EXF_ARTIFACT_ARTIFACT_CAPTURE_H
#include "artifact/artifact.h"
#include "artifact/data.h"

typedef struct {
    exf_h5 *h;
    exf_run_shape shape;
    int n_layers;
    int32_t *layer_number;     /* [n_layers]; borrowed when writing, owned when reading */
    exf_provenance provenance; /* reading only */
    exf_sequence_list sequences; /* reading only, in order of their rows; unknown in version 1 */
    int has_stream;              /* 1: rows have the energy of the residual stream after the layer */
} exf_capture_file;

/* What a capture is made of. */
typedef struct {
    const char *target, *temporary; /* temporary: the path of the unfinished file, which stays there unless it is committed
                                     * (format/h5.h); NULL: one of its own, of a run that cannot go on */
    int force, n_layers, has_stream; /* has_stream: rows have the squared norms of the residual stream */
    exf_run_shape shape;
    int32_t *layer_number;              /* [n_layers]; borrowed by the file */
    const exf_sequence_list *sequences; /* in order of their rows; NULL: unknown, and only statistics that need none can be made */
    const exf_provenance *provenance;
} exf_capture_plan;

/* Creates a capture with the datasets of every layer; their rows may then come in any order. */
exf_code exf_capture_create(exf_capture_file *f, const exf_capture_plan *plan, exf_err *err) EXF_CHECKED;
/* Goes on with the unfinished file of an earlier run, whose structure was kept; each layer is taken before any is put. */
exf_code exf_capture_continue(exf_capture_file *f, const exf_capture_plan *plan, const exf_h5_structure *s,
                              exf_err *err) EXF_CHECKED;
enum { EXF_CAPTURE_PARTS = 4 };
int exf_capture_parts(const exf_capture_file *f); /* datasets of a layer: one more with energies of the stream */
/* Takes a layer of a continued file: with the CRC-32s of its datasets' rows, which are compared (EXF_FORMAT), or NULL: all its
 * rows are to be put. */
exf_code exf_capture_take_layer(exf_capture_file *f, int layer, const uint32_t *crc, exf_err *err) EXF_CHECKED;
/* The CRC-32s of what was put of a layer, for a record of it. */
exf_code exf_capture_checksums(exf_capture_file *f, int layer, uint32_t crc[EXF_CAPTURE_PARTS], exf_err *err) EXF_CHECKED;
/* Writes rows [row, row + n) of one layer: ids [n, K], weights [n, K], outputs [n, K, H], and, of a file that has them, the squared
 * norms of the residual stream [n] (NULL: none).  Not thread-safe. */
exf_code exf_capture_put(exf_capture_file *f, int layer, int64_t row, int64_t n, const int32_t *ids, const float *weights,
                         const float *outputs, const double *stream_sq, exf_err *err) EXF_CHECKED;
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
/* Says why rows of a layer were refused with rc and *err: the layer is damaged, which is told in place of what its damaged rows
 * look like; or rc and *err as they are. */
exf_code exf_capture_blame(exf_capture_file *f, int layer, exf_code rc, exf_err *err);
void exf_capture_close(exf_capture_file *f);
#endif
