/* weight_schedule.h - a weight schedule lists the loads of a weight loader in order, and the
 * area of device memory that each fills.
 *
 * Areas are the two slots of whole layers; with parts, an area for the layer's tensors other
 * than routed experts and, after it, the two slots of parts. */
#ifndef EXF_WEIGHTS_WEIGHT_SCHEDULE_H
#define EXF_WEIGHTS_WEIGHT_SCHEDULE_H
#include "base/hash.h"
#include "weights/weight_plan.h"

typedef struct {
    int n_slots;   /* 1 or 2 */
    int n_readers; /* threads; 0: as many as the system has, at most 16 */
    int first_layer; /* 0: the embedding and layers from 0 on; else no embedding, and layers from this one on */
    int n_layers;  /* layers up to n_layers - 1 are loaded */
    int head;      /* 1: EXF_LAYER_HEAD is loaded last */
    const unsigned char *chosen; /* [n_layers] NULL: the embedding and all layers; else only layers with 1, no embedding */
    int part_experts; /* 0: layers are loaded whole; else the routed experts of a part */
    struct exf_shared_chunks *shared; /* shared_chunks.h; NULL: this process reads all chunks itself */
    int passes;       /* with parts: how often a layer's parts are loaded, first to last each time */
} exf_weight_loader_options;

enum { EXF_WEIGHT_AREAS = 3 };

/* One filling of an area. */
typedef struct {
    size_t plan;
    int area;
    int early; /* 1: may begin while the weights of the load before are used */
} exf_weight_load;

typedef struct {
    exf_weight_plan *plan; /* [n_plans]; loads of the same part share one */
    size_t n_plans, plan_capacity;
    exf_weight_load *load; /* [n] in order */
    size_t n, capacity;
} exf_weight_schedule;

/* Makes the schedule in *t, which is zero. */
exf_code exf_weight_schedule_make(exf_weight_schedule *t, const exf_model *m, exf_compute compute,
                                  const exf_weight_loader_options *o, exf_err *err) EXF_CHECKED;
/* Computes a digest that is equal for schedules of the same chunks in the same order, and counts the chunks. */
exf_code exf_weight_schedule_digest(const exf_weight_schedule *t, char hex[EXF_SHA256_HEX], size_t *n_chunks,
                                    exf_err *err) EXF_CHECKED;
void exf_weight_schedule_free(exf_weight_schedule *t);
/* Returns the bytes of the largest chunk of all plans, in pinned memory and on the device; at least one alignment. */
void exf_weight_schedule_most(const exf_weight_schedule *t, size_t *host, size_t *device);

/* Return bytes of device memory: of a slot, and of the tensors that a layer keeps beside its parts
 * (0 if layers are loaded whole). n_slots and passes do not matter. */
size_t exf_weight_loader_slot_bytes(const exf_model *m, exf_compute compute, const exf_weight_loader_options *o);
size_t exf_weight_loader_base_bytes(const exf_model *m, exf_compute compute, const exf_weight_loader_options *o);
#endif
