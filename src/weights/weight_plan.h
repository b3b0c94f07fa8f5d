/* weight_plan.h - the weights of a decoder layer in a backend's memory, and the plan by which they get there.
 *
 * On the host they are float32.  On a device the matrices that products read have the type of the compute mode, all other
 * tensors are float32.  A plan lists the chunks of a layer's tensors, or of a part of them: where each is in the checkpoint
 * and in a slot of device memory.  A schedule lists the loads of a pass in order, and the area that each fills: areas are
 * the two slots of whole layers; with parts, an area for the layer's tensors other than routed experts and, after it, the
 * two slots of parts. */
#ifndef EXF_WEIGHTS_WEIGHT_PLAN_H
#define EXF_WEIGHTS_WEIGHT_PLAN_H
#include "base/hash.h"
#include "kernels/backend.h"
#include "model/model.h"

/* One decoder layer's tensors. */
typedef struct {
    float *w[EXF_W_COUNT];      /* by role; experts' stacked [E, ...]; NULL if the layer has none, or has it in w16 */
    uint16_t *w16[EXF_W_COUNT]; /* matrices of products in bfloat16 */
    uint16_t *router_split;     /* [E, 2 H] the router's matrix twice side by side, if it is stored in bfloat16; or NULL */
    size_t capacity[EXF_W_COUNT]; /* floats allocated for each role */
    float *held[EXF_W_COUNT];   /* allocations, reused by the next layer */
    const exf_backend *b;
} exf_layer_weights;

/* Returns the matrix of a role from w or w16; p is NULL if the layer has none. */
static inline exf_matrix exf_matrix_of(const exf_layer_weights *lw, exf_role role)
{
    return lw->w16[role] ? exf_bf16(lw->w16[role]) : exf_f32(lw->w[role]);
}

/* Zero-initialise lw and set b; a loader fills it (weight_loader.h). */
void exf_layer_weights_free(exf_layer_weights *lw);
/* Returns the floats that the largest layer needs in host memory. */
size_t exf_layer_weights_size(const exf_model *m);

/* ---- plan and schedule --------------------------------------------------------------------------- */

/* Numbers that stand for the tensors outside the layers. */
enum { EXF_LAYER_HEAD = -1, EXF_LAYER_EMBED = -2 };

/* Rows of one tensor that are read at a time (exf_weight_piece_rows()). */
typedef struct {
    exf_role role;
    int expert;
    int raw; /* 1: copied as stored and dequantized on the device; 0: dequantized on the host, on the device rounded to bfloat16
              * if that is its number */
    exf_model_rows at;
    size_t row, n_rows; /* rows of the tensor */
    exf_number number;  /* number type of the matrix in the slot */
    size_t to;          /* offset in the slot, in bytes */
} exf_weight_chunk;

/* The part of a layer that is loaded: all tensors, all but the routed experts, or n routed experts
 * from `first` on.  Numbers below 0 are EXF_LAYER_HEAD and EXF_LAYER_EMBED. */
typedef enum { EXF_WEIGHTS_ALL, EXF_WEIGHTS_NON_EXPERT, EXF_WEIGHTS_EXPERTS } exf_weight_choice;
typedef struct {
    int layer;
    exf_weight_choice choice;
    int first, n;
} exf_weight_part;

typedef struct {
    exf_weight_part of;
    exf_weight_chunk *chunk;
    size_t n, capacity;
    size_t first[EXF_W_COUNT]; /* bytes into the slot where a role's tensors start; only where the layer has them */
    exf_number number[EXF_W_COUNT];
    unsigned char present[EXF_W_COUNT];
    size_t split;       /* offset in the slot of the doubled router matrix (router_split); 0: none */
    size_t most_host, most_device; /* bytes of the largest chunk in pinned memory, and of the largest that the device dequantizes */
} exf_weight_plan;

/* Returns 1 for a chunk whose bytes go to their place on a device as they are; they are checked later, with the whole part. */
int exf_chunk_copied_as_stored(const exf_weight_chunk *p);
/* A device's readers read such a chunk in slices of 1 MB: a core's cache of 2 MB holds two.  On an H100's host 14 readers and the
 * copies alone reach 46 GB/s so, 44 by 2 MB, 34 to 39 by 4 MB and 41 by 512 KB. */
enum { EXF_SLICE_BYTES = 1 << 20 };
/* Returns the bytes that a chunk takes as stored: of one kind of its tensors, of the buffer that they are read to, and of the
 * device memory from which they are dequantized, where kinds follow each other at exf_device_offset(). */
size_t exf_chunk_stored_bytes(const exf_weight_chunk *p, exf_stored_kind kind);
size_t exf_chunk_room(const exf_weight_chunk *p);
size_t exf_device_offset(const exf_weight_chunk *p, exf_stored_kind kind);
/* Computes at least the room, and the device memory, of any chunk of a model's weights. */
void exf_weight_most_bytes(const exf_model *m, size_t *room, size_t *device);
/* Points lw at a part that is in `slot`; a part of experts leaves lw's other tensors as they are. */
void exf_weight_plan_point(exf_layer_weights *lw, const exf_weight_plan *p, char *slot);
/* Returns the number of elements of a role's tensors in a part. */
size_t exf_weight_plan_elements(const exf_model *m, exf_role role, const exf_weight_part *of);

typedef struct {
    int n_slots;   /* 1 or 2 */
    int n_readers; /* threads; 0: as many as the system has, at most 16 */
    int first_layer; /* 0: the embedding and layers from 0 on; else no embedding, and layers from this one on */
    int n_layers;  /* layers up to n_layers - 1 are loaded */
    int head;      /* 1: EXF_LAYER_HEAD is loaded last */
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
