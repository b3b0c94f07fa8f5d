/* sum_arrays.h - a group of a layer's sums (norm head, vectors, route sample) as a list of arrays, from which follow its datasets
 * in the statistics file, its tensors in a resume point, and what ranks add up. */
#ifndef EXF_ACCUMULATE_SUM_ARRAYS_H
#define EXF_ACCUMULATE_SUM_ARRAYS_H
#include "artifact/artifact.h"
#include "ranks/ranks.h"

#include <stdio.h>
#include <string.h>

enum { EXF_SUM_PATH = 96, EXF_MOST_SUM_ARRAYS = 8 /* of a group */ };
enum { EXF_RANKS_ALIKE = -1 }; /* in place of an exf_ranks_kind: an array that is the same on all ranks, and is not summed */

typedef struct {
    int kind;     /* how ranks add it up */
    exf_tensor t; /* name: "norms.pp", in a file /layers/<l>/norms/pp; data: the array */
} exf_sum_array;

/* Writes the path of a group or an array to `path`, and returns it. */
static inline const char *exf_sum_path(char path[EXF_SUM_PATH], int layer, const char *name)
{
    snprintf(path, EXF_SUM_PATH, "/layers/%d/%s", layer, name);
    char *dot = strchr(path, '.');
    if (dot) *dot = '/';
    return path;
}

typedef enum { EXF_SUMS_WRITE, EXF_SUMS_EXPECT, EXF_SUMS_READ } exf_sums_action;

/* Writes n arrays to a file, refuses other shapes than theirs (before memory is taken for them), or reads them. */
static inline exf_code exf_sum_arrays_do(exf_sums_action what, const exf_sum_array *all, size_t n, exf_h5 *h, int layer,
                                         exf_err *err)
{
    char path[EXF_SUM_PATH];
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < n; i++) {
        exf_tensor t = all[i].t;
        t.name = exf_sum_path(path, layer, t.name);
        t.data = what == EXF_SUMS_WRITE ? t.data : NULL;
        rc = what == EXF_SUMS_WRITE    ? exf_h5_write(h, &t, err)
             : what == EXF_SUMS_EXPECT ? exf_h5_expect(h, &t, err)
                                       : exf_h5_read(h, &t, (void *)(uintptr_t)all[i].t.data, err);
    }
    return rc;
}
#endif
