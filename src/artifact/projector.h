/* projector.h - a projector approximates an omitted expert's output: E_s(x) ~ M E_t(x) (docs/method.md, section 2).
 *
 * A registry (base/registry.h): one file src/solve/projector_<name>.c per projector says which
 * sums it needs, how a layer of it is solved, which arrays it stores, and how folding applies it.
 * Accumulation, solving, files, exports and folding use this table and know no projector by name
 * but `pair`, on which all others fall back.  The type is declared in src/artifact because all
 * these modules may include it. */
#ifndef EXF_ARTIFACT_PROJECTOR_H
#define EXF_ARTIFACT_PROJECTOR_H
#include "artifact/tables.h"

struct exf_solve_options;    /* solve/solve.h */
struct exf_layer_statistics; /* accumulate/statistics.h, as the next one */
struct exf_statistics_reader;

/* How folding applies a projector. */
typedef enum {
    EXF_APPLY_PAIR,    /* by the scalars and losses of each pair: tables.coeff and tables.loss */
    EXF_APPLY_SHARED,  /* by scalars and losses of the sharing pattern of its name: tables.shared */
    EXF_APPLY_VECTORS, /* by its `form`, added to the routed output; in prefill only */
    EXF_APPLY_JOINTLY  /* by the joint forms of exfold/fold.h */
} exf_apply;

/* The map M of every pair with vectors: S I (if `scalar` is 1) + diag(d) + Q C. Other pairs have S I. */
typedef struct {
    int scalar;
    const float *loss;     /* [L, E, E] losses by which targets are chosen; NULL: the scalar's */
    const float *diagonal; /* [N, H] d, or NULL */
    const float *basis;    /* [L, H, columns] Q is its first `rank` columns */
    const float *c;        /* [N, rank, H] */
    int columns, rank;     /* 0: no Q C */
} exf_projector_form;

typedef struct exf_projector {
    const char *name;   /* the name in calibrate.projectors and in projector= of a variant */
    const char *words;  /* the same for people who read a variant's line in a table */
    int place;          /* position in lists for people, which begin with the simplest */
    exf_apply apply;
    int ranked;         /* 1: a variant spells it <name><R>, and calibrate.ranks lists the R that are solved */
    unsigned observes;  /* EXF_OBSERVES_* of accumulate/vector_sums.h: the sums it needs beside those of every pair */
    int reads_file;     /* 1: `begin` reads the sums of all layers, which must be complete; 0: its r may be NULL */
    /* Called before any layer: allocates arrays in the tables, computes sums over layers; NULL:
     * nothing to do. `begin` and `layer` both NULL: nothing is solved. */
    exf_code (*begin)(struct exf_statistics_reader *r, const struct exf_solve_options *o, exf_tables *t, exf_err *err);
    /* Fills layer index l of the tables from that layer's statistics; "pair" has filled it before. */
    exf_code (*layer)(const struct exf_layer_statistics *s, const struct exf_solve_options *o, int l, exf_tables *t, exf_err *err);
    const exf_stored_array *stored; /* arrays of tables.vectors; the array without a name ends them; NULL: none */
    /* EXF_APPLY_VECTORS: its form in these tables, borrowed from them; EXF_USAGE names the recipe
     * keys that make missing arrays. */
    exf_code (*form)(exf_projector_form *out, const exf_tables *t, int rank, exf_err *err);
} exf_projector;

/* What the two are called and how they fold, wherever they are defined: libexfold_fold has them without the solver
 * (src/fold/projector_served.c). */
#define EXF_PROJECTOR_PAIR .name = "pair", .words = "one scalar per pair", .place = 10, .apply = EXF_APPLY_PAIR
#define EXF_PROJECTOR_JOINT .name = "joint", .words = "joint weights", .place = 60, .apply = EXF_APPLY_JOINTLY
extern const exf_projector exf_projector_pair; /* fallback of all others */
extern const exf_projector exf_projector_joint; /* of folds that weigh jointly whatever is said */
const exf_projector *exf_projector_at(size_t i);           /* in order of name; NULL: past the end */
const exf_projector *exf_projector_find(const char *name); /* NULL: unknown */
/* Finds a projector that calibrate.projectors may name: EXF_USAGE names the unknown, the known and the nearest. */
exf_code exf_projector_require(const char *name, const exf_projector **out, exf_err *err) EXF_CHECKED;
/* Returns the first projector whose place is after `place`, for lists for people; NULL: none. */
const exf_projector *exf_projector_after(int place);
#endif
