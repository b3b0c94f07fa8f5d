/* statistics.h - the additive sufficient statistics of a run, in memory one
 * layer at a time, on disk as `statistics` (artifact_statistics.c). */
#ifndef EXF_ARTIFACT_STATISTICS_H
#define EXF_ARTIFACT_STATISTICS_H
#include "artifact/artifact.h"
#include "base/exact.h"

/* What each sums is said in kernels/moments.h. */
#define EXF_PAIR_SUMS(X) X(dot) X(target_sq) X(source_sq) X(dot0) X(sq0)
#define EXF_EXPERT_SUMS(X) X(norm_sum) X(sq_sum) X(route_weight_sum) X(contribution_sum)

/* One MoE layer.  Sums are exact; counts are tokens. */
typedef struct {
#define X(name) exf_exact *name;
    EXF_PAIR_SUMS(X)   /* [E, E], row = source */
    EXF_EXPERT_SUMS(X) /* [E] */
#undef X
    uint64_t *count;      /* [E, E] */
    uint64_t *norm_count; /* [E] */
    int n_experts;
} exf_layer_statistics;

exf_code exf_layer_statistics_new(exf_layer_statistics *s, int n_experts, exf_err *err) EXF_CHECKED;
void exf_layer_statistics_zero(exf_layer_statistics *s);
/* to += from, exactly. */
void exf_layer_statistics_merge(exf_layer_statistics *to, const exf_layer_statistics *from);
void exf_layer_statistics_free(exf_layer_statistics *s);

/* ---- writing, layer by layer ------------------------------------------- */
typedef struct {
    exf_h5 *h;
    exf_run_shape shape;
} exf_statistics_writer;

exf_code exf_statistics_create(exf_statistics_writer *w, const char *target, int force, const exf_run_shape *shape,
                               const int32_t *layer_numbers, int n_layers, const exf_provenance *p, exf_err *err) EXF_CHECKED;
exf_code exf_statistics_put(exf_statistics_writer *w, int layer_number, const exf_layer_statistics *s, exf_err *err) EXF_CHECKED;
exf_code exf_statistics_commit(exf_statistics_writer *w, exf_err *err) EXF_CHECKED; /* ends w, also on failure */
void exf_statistics_abort(exf_statistics_writer *w); /* fine after commit */

/* ---- reading, layer by layer ---------------------------------------------- */
typedef struct {
    exf_h5 *h;
    exf_run_shape shape;
    int n_layers;
    int32_t *layer_number; /* [n_layers] */
    exf_provenance provenance;
} exf_statistics_reader;

exf_code exf_statistics_open(exf_statistics_reader *r, const char *path, exf_err *err) EXF_CHECKED;
/* Layer i of n_layers into s (made by exf_layer_statistics_new).  Refuses a
 * file whose rounded sums are not those of its exact ones, or whose counts break what they must obey. */
exf_code exf_statistics_get(exf_statistics_reader *r, int i, exf_layer_statistics *s, exf_err *err) EXF_CHECKED;
void exf_statistics_close(exf_statistics_reader *r);
#endif
