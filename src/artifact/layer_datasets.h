/* layer_datasets.h - names, types and shapes of the datasets of a layer of statistics (artifact_statistics.c). */
#ifndef EXF_ARTIFACT_LAYER_DATASETS_H
#define EXF_ARTIFACT_LAYER_DATASETS_H
#include "artifact/statistics.h"

#include <stdio.h>
#include <string.h>

enum { EXF_DATASET_PATH = 96, EXF_DATASET_NAME = 48 };

typedef struct {
    char path[EXF_DATASET_PATH];
    exf_tensor t;
} exf_layer_dataset;

/* Describes a dataset of shape [a], [a, b] or [a, b, c]; 0: no such axis. */
static inline exf_layer_dataset exf_layer_dataset_of(int layer, const char *name, exf_dtype dtype, int64_t a, int64_t b, int64_t c)
{
    exf_layer_dataset d = {.t = {.dtype = dtype, .rank = b ? c ? 3 : 2 : 1, .shape = {a, b, c}}};
    snprintf(d.path, sizeof d.path, "/layers/%d/%s", layer, name);
    return d;
}

/* Describes sums of shape [E] (rank 1) or [E, E] (rank 2): rounded, or exact with an axis of 3 words. */
static inline exf_layer_dataset exf_layer_sums_dataset(int layer, const char *name, int rank, int64_t e, int exact)
{
    char of_exact[EXF_DATASET_NAME];
    snprintf(of_exact, sizeof of_exact, "exact/%s", name);
    return exact ? exf_layer_dataset_of(layer, of_exact, EXF_DT_U64, e, rank == 2 ? e : 3, rank == 2 ? 3 : 0)
                 : exf_layer_dataset_of(layer, name, EXF_DT_F64, e, rank == 2 ? e : 0, 0);
}

/* Describes sums of a half, which are stored exactly alone. */
static inline exf_layer_dataset exf_half_sums_dataset(int layer, const char *name, int64_t e)
{
    char of_half[EXF_DATASET_NAME];
    snprintf(of_half, sizeof of_half, "half/%s", name + strlen("half_"));
    return exf_layer_dataset_of(layer, of_half, EXF_DT_U64, e, e, 3);
}

/* Writes a layer's sums and counts of pairs and experts; their elements are rounded and written by several threads. */
exf_code exf_layer_sums_write(const exf_statistics_writer *w, int layer, const exf_layer_statistics *s, exf_err *err) EXF_CHECKED;
#endif
