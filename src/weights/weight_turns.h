/* weight_turns.h - what a stream of weights brings, in order, and where each lies.
 *
 * Areas are the two slots of whole layers; or, with parts, the place of what a layer has
 * beside its routed experts, and behind it the two slots of parts. */
#ifndef EXF_WEIGHTS_WEIGHT_TURNS_H
#define EXF_WEIGHTS_WEIGHT_TURNS_H
#include "weights/weight_plan.h"
#include "weights/weight_stream.h"

enum { EXF_WEIGHT_AREAS = 3 };

/* One fill of an area. */
typedef struct {
    size_t plan;
    int area;
    int early; /* 1: may begin while the turn before is used */
} exf_weight_turn;

typedef struct {
    exf_weight_plan *plan; /* [n_plans] a part that is read again has one */
    size_t n_plans, room_plans;
    exf_weight_turn *turn; /* [n] from the embedding on */
    size_t n, room;
} exf_weight_turns;

/* Into *t, which is zero. */
exf_code exf_weight_turns_make(exf_weight_turns *t, const exf_model *m, exf_compute compute, const exf_stream_options *o, exf_err *err) EXF_CHECKED;
void exf_weight_turns_free(exf_weight_turns *t);
/* Bytes of the largest chunk of all, in pinned memory and on the device; one alignment at least. */
void exf_weight_turns_most(const exf_weight_turns *t, size_t *host, size_t *device);
#endif
