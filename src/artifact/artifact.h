/* artifact.h - what all HDF5 files of ExFold have in common.
 *
 * Every artifact is an HDF5 file whose root has the attributes
 *   exfold_kind        text   "statistics", "tables", "capture"
 *   exfold_version     i64    version of the layout it was written in
 *   exfold_min_reader  i64    the oldest reader version that understands it
 *   exfold_container   i64    2: how the file is laid out (format/h5.h); no digest covers it
 * and a group /provenance (provenance.h).  Every dataset is contiguous, unfiltered and little endian, and has
 * a text attribute
 *   crc32    the CRC-32 of its elements' bytes, 8 hexadecimal digits
 * which every reader compares with the elements; no digest covers it.  A reader of version R refuses a file whose
 * exfold_min_reader is above R, and files of container version 1 with the program that makes them again. */

/* The kinds and their versions stand in artifact.c; src/artifact/artifact_<kind>.c reads and writes one, and the comment on its
 * top is the format's specification. */
#ifndef EXF_ARTIFACT_ARTIFACT_H
#define EXF_ARTIFACT_ARTIFACT_H
#include "artifact/provenance.h"
#include "format/safetensors.h"

typedef struct {
    const char *kind;
    int version, min_reader;
} exf_artifact;

extern const exf_artifact exf_artifact_capture, exf_artifact_statistics, exf_artifact_tables;

const exf_artifact *exf_artifact_find(const char *kind); /* NULL: unknown */
const exf_artifact *exf_artifact_at(size_t i);           /* in order of kind; NULL: past the end */

/* Starts a file of this kind and writes root attributes and provenance.  temporary: as in exf_h5_create(). */
exf_code exf_artifact_create(exf_h5 **out, const char *target, int force, const char *temporary, const exf_artifact *a,
                             const exf_provenance *p, exf_err *err) EXF_CHECKED;
/* EXF_USAGE if the file is tables that exfold-export wrote for other programs: names the tables.h5 beside it. */
exf_code exf_artifact_refuse_export(const exf_st_file *f, exf_err *err) EXF_CHECKED;
/* Opens a file and reads its provenance (may be NULL). expected NULL: any kind is accepted and
 * stored in *found (may be NULL).  EXF_USAGE if path is a directory, a file of another kind (both name the expected file where it
 * lies there) or of another program, EXF_FORMAT if it is no artifact, EXF_VERSION if it needs a newer program.  A .pt file is
 * refused with the script that takes its tables out. */
exf_code exf_artifact_open(exf_h5 **out, const char *path, const exf_artifact *expected, const exf_artifact **found,
                           exf_provenance *p, exf_err *err) EXF_CHECKED;

/* Computes the digest of a file of this kind (NULL: of any), as exf_h5_digest() does; of tables that others made
 * (tables_safetensors.c), where tables are expected, the SHA-256 of the file. */
exf_code exf_artifact_digest(const char *path, const exf_artifact *expected, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;

/* No count is above this: that of tokens, and of all tokens' routes, are not. */
#define EXF_MOST_COUNTED ((int64_t)1 << 53)

/* The root attributes that all kinds have. */
typedef struct {
    int64_t n_experts, top_k, d_model;  /* E, K, H */
    int64_t n_sequences, n_tokens;      /* of the calibration run */
} exf_run_shape;
exf_code exf_run_shape_write(const exf_run_shape *s, exf_h5 *h, exf_err *err) EXF_CHECKED;
exf_code exf_run_shape_read(exf_run_shape *s, exf_h5 *h, exf_err *err) EXF_CHECKED;

enum { EXF_LAYERS_LIMIT = 1024 }; /* no model has more layers: EXF_MAX_LAYERS of model/architecture.h */

/* /layer_numbers, I32 [L]: the model's layer number of each MoE layer, ascending; below the fact model.layers, which files of
 * other programs may lack, and below what any model has. */
exf_code exf_layer_numbers_write(const int32_t *numbers, int n, exf_h5 *h, exf_err *err) EXF_CHECKED;
exf_code exf_layer_numbers_read(int32_t **numbers, int *n, const exf_provenance *p, exf_h5 *h,
                                exf_err *err) EXF_CHECKED; /* caller frees */
#endif
