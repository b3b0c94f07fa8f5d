/* model_rows.c - rows of several roles in one tensor, group by group: which rows of the tensor are a role's; see model.h.
 *
 * A role's tensor is read in runs, as the matrices of experts are: as many rows as divide each of its parts, so that no run
 * crosses the end of a part.  The rows of the delta rule's q, k and v of 16 heads are 64 runs of 128 in Qwen3-Next. */
#include "model/model.h"

enum { PARTS = 4 };

typedef struct {
    exf_dim groups, part[PARTS]; /* groups; rows of each part in one group */
} row_groups;

static const row_groups layouts[EXF_ROWS_LAYOUTS] = {
    [EXF_ROWS_QKVZ] = {EXF_DIM_DELTA_GROUPS,
                       {EXF_DIM_DELTA_KEY, EXF_DIM_DELTA_KEY, EXF_DIM_DELTA_GROUP_VALUES, EXF_DIM_DELTA_GROUP_VALUES}},
    [EXF_ROWS_BA] = {EXF_DIM_DELTA_GROUPS, {EXF_DIM_DELTA_GROUP_HEADS, EXF_DIM_DELTA_GROUP_HEADS}},
};

static int is_own(const exf_tensor_rule *r, int part)
{
    return r->how >> 12 >> part & 1;
}

/* Rows of one group in all parts before `end`. */
static int64_t rows_before(const exf_architecture *a, const row_groups *g, int end)
{
    int64_t rows = 0;
    for (int i = 0; i < end && g->part[i] != EXF_DIM_NONE; i++) rows += a->dim[g->part[i]];
    return rows;
}

int64_t exf_rule_rows_stored(const exf_architecture *a, const exf_tensor_rule *r)
{
    const row_groups *g = &layouts[EXF_ROW_LAYOUT(r->how)];
    return a->dim[g->groups] * rows_before(a, g, PARTS);
}

int exf_rule_run_rows(const exf_architecture *a, const exf_tensor_rule *r)
{
    const row_groups *g = &layouts[EXF_ROW_LAYOUT(r->how)];
    int run = 0;
    for (int i = 0; i < PARTS; i++)
        for (int b = is_own(r, i) ? a->dim[g->part[i]] : 0; b;) { /* Euclid's greatest common divisor */
            int rest = run % b;
            run = b;
            b = rest;
        }
    return run;
}

int64_t exf_rule_run_row(const exf_architecture *a, const exf_tensor_rule *r, int run)
{
    const row_groups *g = &layouts[EXF_ROW_LAYOUT(r->how)];
    int64_t row = (int64_t)run * exf_rule_run_rows(a, r), groups = a->dim[g->groups];
    int i = 0;
    for (; !is_own(r, i) || row >= groups * a->dim[g->part[i]]; i++)
        if (is_own(r, i)) row -= groups * a->dim[g->part[i]];
    int64_t each = a->dim[g->part[i]];
    return row / each * rows_before(a, g, PARTS) + rows_before(a, g, i) + row % each;
}

int exf_rule_begins_tensor(const exf_tensor_rule *r)
{
    return !(r->how & (EXF_SECOND_HALF | EXF_ODD_ROWS)) && (!EXF_ROW_LAYOUT(r->how) || is_own(r, 0));
}
