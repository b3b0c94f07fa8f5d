/* layer_weights.h - exf_layer_weights holds one decoder layer's tensors in a backend's memory.
 *
 * On the host they are float32.  On a device the matrices that products read
 * (exf_is_product) have the type of the compute mode, all other tensors are float32. */
#ifndef EXF_WEIGHTS_LAYER_WEIGHTS_H
#define EXF_WEIGHTS_LAYER_WEIGHTS_H
#include "kernels/backend.h"
#include "model/model.h"

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

/* Returns 1 for a role whose matrix only products read; 0 for the router's, which stays float32. */
int exf_is_product(exf_role role);

/* Zero-initialise lw and set b; host_loader.h fills it on the host, weight_loader.h on a device. */
void exf_layer_weights_free(exf_layer_weights *lw);
/* Returns the floats that the largest layer needs in host memory. */
size_t exf_layer_weights_size(const exf_model *m);
#endif
