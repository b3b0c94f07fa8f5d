/* projector.h - what stands for an omitted expert's output: E_s(x) ~ M E_t(x) (method, section 2).
 *
 * A registry (base/registry.h): one file src/projector/projector_<name>.c per projector says which
 * sums it needs, how a layer of it is solved, what it stores, and how folding applies it;
 * accumulation, solving, the files, exports and folding ask this table and know none by name
 * but `pair`, which everything falls back on.  The table is declared here, below them all. */
#ifndef EXF_ARTIFACT_PROJECTOR_H
#define EXF_ARTIFACT_PROJECTOR_H
#include "artifact/statistics.h"
#include "artifact/tables.h"

struct exf_solve_options; /* projector/solving.h */

/* How folding applies one. */
typedef enum {
    EXF_APPLY_PAIR,    /* by the scalars and losses of each pair: tables.coeff and tables.loss */
    EXF_APPLY_SHARED,  /* by those of the sharing pattern of its name: tables.shared */
    EXF_APPLY_VECTORS, /* by what `form` says, added to the routed output; in prefill alone */
    EXF_APPLY_JOINTLY  /* by the joint forms of exfold/fold.h */
} exf_apply;

/* M of every pair with vectors: S I, where `scalar` is 1, + diag(d) + Q C.  Other pairs have S I. */
typedef struct {
    int scalar;
    const float *loss;     /* [L, E, E] by which targets are chosen; NULL: the scalar's */
    const float *diagonal; /* [N, H] d, or NULL */
    const float *basis;    /* [L, H, columns] Q is its first `rank` columns */
    const float *c;        /* [N, rank, H] */
    int columns, rank;     /* 0: no Q C */
} exf_projector_form;

typedef struct exf_projector {
    const char *name;   /* in calibrate.projectors, and behind projector= in a variant */
    int place;          /* in lists for people, which begin with the plainest */
    exf_apply apply;
    int ranked;         /* 1: a variant spells it <name><R>, and calibrate.ranks lists the R that are solved */
    unsigned observes;  /* EXF_OBSERVES_*: the sums it needs beside those of every pair */
    /* Both NULL: nothing is solved.  Before any layer: room in the tables, sums over layers; NULL: nothing to do. */
    exf_code (*begin)(exf_statistics_reader *r, const struct exf_solve_options *o, exf_tables *t, exf_err *err);
    /* Fills layer index l of the tables from that layer's statistics; "pair" has filled it before any other. */
    exf_code (*layer)(const exf_layer_statistics *s, const struct exf_solve_options *o, int l, exf_tables *t, exf_err *err);
    const exf_stored_array *stored; /* arrays of tables.vectors, up to one without a name; NULL: none */
    /* EXF_APPLY_VECTORS: its form in these tables, borrowed from them; EXF_USAGE saying which recipe keys
     * would have made what they lack. */
    exf_code (*form)(exf_projector_form *out, const exf_tables *t, int rank, exf_err *err);
} exf_projector;

extern const exf_projector exf_projector_pair; /* the base of all others */
const exf_projector *exf_projector_at(size_t i);           /* in order of name; NULL: past the end */
const exf_projector *exf_projector_find(const char *name); /* NULL: unknown */
/* Those that calibrate.projectors may name: EXF_USAGE naming the unknown, the known and the nearest. */
exf_code exf_projector_require(const char *name, const exf_projector **out, exf_err *err) EXF_CHECKED;
/* The first in the lists for people whose place is behind `place`; NULL: none. */
const exf_projector *exf_projector_after(int place);
#endif
