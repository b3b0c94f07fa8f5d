/* inspection.h - an inspection holds the contents of an artifact of any kind, and of its
 * statistics if given, layer by layer in memory; summaries, pictures and reports read it. */
#ifndef EXF_INSPECT_INSPECTION_H
#define EXF_INSPECT_INSPECTION_H
#include "artifact/sequences.h"
#include "artifact/statistics.h"
#include "artifact/tables.h"

/* Matrices have a row per source expert.  A pointer is NULL if the files lack its numbers;
 * an inspection owns all arrays. */
typedef struct {
    const exf_artifact *kind; /* of the first file */
    int64_t version;          /* of the first file */
    exf_run_shape shape;
    int n_layers;             /* L */
    int32_t *layer_number;    /* [L] */
    uint64_t *count;          /* [L, E, E] tokens that saw a pair */
    uint64_t *expert_count;   /* [L, E] */
    uint64_t *empty_slots;    /* [L] slots of a layer's tokens without an expert; NULL: 0 */
    float *norms;             /* [L, E] mean output norm; a cold expert has the tables' value, or NaN */
    float *coeff, *loss;      /* [L, E, E] as in tables.h */
    float *std_error;         /* [L, E, E] as in tables.h */
    float *similarity;        /* [L, E, E] raw (exf_geometry); NaN unobserved, 1 on the diagonal */
    float *aligned;           /* [L, E, E] the same after the pair's own scalar */
    uint64_t *vectors;        /* [L] pairs with vectors; a basis only, whose counts and norms say nothing */
    exf_static_pool *pool;           /* tables only */
    int n_pools;
    exf_budget *budget;              /* tables only */
    int n_budgets;
    exf_sequence_list sequences; /* of a capture or statistics, where known */
    exf_provenance provenance;
    char *part; /* of which part of its data the first file is (artifact/shards.h); NULL: of the whole */
} exf_inspection;

/* Reads a file of any of our kinds.  beside NULL, or the statistics of the tables at
 * path: EXF_MODEL naming both files and what differs if they are of another model, of
 * other layers or of other data.  Ownership: exf_inspection_free(), also after an error. */
exf_code exf_inspection_read(exf_inspection *s, const char *path, const char *beside, exf_err *err) EXF_CHECKED;
/* Reads a basis too, which has no numbers of pairs: exf_inspection_read() refuses one. */
exf_code exf_inspection_read_any(exf_inspection *s, const char *path, const char *beside, exf_err *err) EXF_CHECKED;
/* Makes an inspection of tables in memory, taking their arrays; t is emptied. */
void exf_inspection_take_tables(exf_inspection *s, exf_tables *t);
/* Removes all layers but those of a list of the model's layer numbers, "0,3,8-11" ("all": none
 * is removed), from all arrays; the pools are removed whole.  EXF_USAGE for a malformed list or
 * one that names a layer that the inspection lacks. */
exf_code exf_inspection_select(exf_inspection *s, const char *layers, exf_err *err) EXF_CHECKED;
void exf_inspection_free(exf_inspection *s);

/* Returns 1 where two different experts were observed together, in tables often enough to have a
 * loss; at = (layer E + source) E + target. */
int exf_inspection_observed(const exf_inspection *s, size_t at);

/* ---- geometry ------------------------------------------------------------------------------ */

/* Computes the similarity of two experts' outputs, raw and after the pair's best
 * scalar (docs/method.md, section 5; paper, "Full-Layer Expert Geometry").
 *
 * With u, v the outputs of s and t on the n tokens that were routed to both,
 *   d[s,t] = sqrt(sum ||u - v||^2 / n),          raw     = 1 - d[s,t] / dmax
 *   a[s,t] = sqrt(min_S sum ||u - S v||^2 / n),  aligned = 1 - (a[s,t] + a[t,s]) / 2 dmax
 * and dmax the layer's largest d.  Unweighted sums dot0 and sq0, in double; aligned is
 * never below raw.
 * Both arrays are [E, E], symmetric; 1 on the diagonal, NaN where the pair was never observed.  loss: the layer's [E, E] of the
 * tables, which may ask for more tokens of a pair than one; NULL: one is enough. */
void exf_geometry(const exf_layer_statistics *s, const float *loss, float *raw, float *aligned);

/* ---- specifications ------------------------------------------------------------------------- */

/* The specifications of the file formats, embedded by the build: the comments on top of src/artifact/artifact_<kind>.c, and
 * those of artifact.h and provenance.h, which all kinds share, as "artifact" and "provenance". */

/* Returns line i of the named specification, without its newline; NULL past the last, or for an unknown name. */
const char *exf_specification_line(const char *name, size_t i);
/* Returns name i of the list, "artifact" and "provenance" first; NULL past the last. */
const char *exf_specification_name(size_t i);
#endif
