/* weight_schedule.h - a weight schedule lists the loads of a weight loader in order, and the
 * area of device memory that each fills.
 *
 * Areas are the two slots of whole layers; with parts, an area for the layer's tensors other
 * than routed experts and, behind it, the two slots of parts. */
#ifndef EXF_WEIGHTS_WEIGHT_SCHEDULE_H
#define EXF_WEIGHTS_WEIGHT_SCHEDULE_H
#include "weights/weight_plan.h"
#include "weights/weight_loader.h"

enum { EXF_WEIGHT_AREAS = 3 };

/* One fill of an area. */
typedef struct {
    size_t plan;
    int area;
    int early; /* 1: may begin while the weights of the load before are used */
} exf_weight_load;

typedef struct {
    exf_weight_plan *plan; /* [n_plans]; loads of the same part share one */
    size_t n_plans, plan_capacity;
    exf_weight_load *load; /* [n] from the embedding on */
    size_t n, capacity;
} exf_weight_schedule;

/* Makes the schedule in *t, which is zero. */
exf_code exf_weight_schedule_make(exf_weight_schedule *t, const exf_model *m, exf_compute compute, const exf_weight_loader_options *o, exf_err *err) EXF_CHECKED;
void exf_weight_schedule_free(exf_weight_schedule *t);
/* Bytes of the largest chunk of all plans, in pinned memory and on the device; one alignment at least. */
void exf_weight_schedule_most(const exf_weight_schedule *t, size_t *host, size_t *device);
#endif
