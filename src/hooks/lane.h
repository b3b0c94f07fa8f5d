/* lane.h - one run of the model inside a pass: its own hidden states, rewriter and observer.
 *
 * A pass carries several lanes over one reading of the weights: the original model and
 * the variants that a validation compares with it.  Up to the first router all lanes
 * are equal and computed once. */
#ifndef EXF_HOOKS_LANE_H
#define EXF_HOOKS_LANE_H
#include "hooks/observer.h"
#include "hooks/rewriter.h"

typedef struct {
    const exf_rewriter *rewriter; /* NULL: routes stay as the router made them */
    const exf_observer *observer; /* NULL: nothing is observed */
} exf_lane;
#endif
