/* weight_loader.h - a weight loader prefetches the next layer's weights to a device while
 * the present layer computes.
 *
 * Reader threads load a layer's tensors chunk by chunk: a chunk is read from the checkpoint
 * as it is stored into pinned memory, copied on the reader's own queue, and dequantized on
 * the device.  A slot is one block of device memory that holds a layer.  With two slots,
 * one is filled while the other is used; with one slot, loading waits for computing.  Each
 * weight byte is read once.
 *
 * If a layer does not fit, its routed experts are loaded in parts: then slots hold parts,
 * the layer's other tensors have an area of their own, and the parts are read once for
 * every pass over the experts. */
#ifndef EXF_WEIGHTS_WEIGHT_LOADER_H
#define EXF_WEIGHTS_WEIGHT_LOADER_H
#include "weights/layer_weights.h"
#include "weights/weight_reader.h"
#include "weights/weight_plan.h"

typedef struct exf_weight_loader exf_weight_loader;

/* Returns the bytes that the readers hold: device memory, pinned memory. */
size_t exf_weight_loader_reader_bytes(const exf_model *m, exf_compute compute, const exf_weight_loader_options *o);
uint64_t exf_weight_loader_host_bytes(const exf_weight_loader_options *o);

/* Starts the readers; the first load is EXF_LAYER_EMBED, or options' first_layer. */
exf_code exf_weight_loader_open(exf_weight_loader **out, const exf_model *m, const exf_backend *b, exf_compute compute,
                                const exf_weight_loader_options *o, exf_err *err) EXF_CHECKED;
/* Waits for the next load, points lw at its weights and starts the load after it.  The order
 * is the embedding, the layers, the head; with parts, each MoE layer's other tensors and then
 * its parts, pass after pass: a part leaves lw's other tensors of the layer as they are.
 * Queues that used the load before must be finished. */
exf_code exf_weight_loader_next(exf_weight_loader *s, exf_layer_weights *lw, exf_err *err) EXF_CHECKED;
/* Stops the readers and frees the loader; writes the sums over all readers to *times. */
void exf_weight_loader_close(exf_weight_loader *s, exf_weight_loader_times *times); /* both may be NULL */
#endif
