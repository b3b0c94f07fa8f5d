/* weight_loader.h - brings the weights of a pass from the checkpoint to a backend's memory, layer after layer.
 *
 * Both loaders go through the chunks of a schedule (weight_plan.h) and fetch each one's stored bytes (shared_chunks.h).
 *
 * The weight loader fills a device's memory: it prefetches the next layer's weights while the present layer computes.
 * Its reader threads read chunks as they are stored into pinned memory; one more thread copies them, and dequantizes them
 * on the device.  A slot is one block of device memory that holds a layer.  With two slots, one is filled while the other
 * is used; with one slot, loading waits for computing.  Each weight byte is read once.  If a layer does not fit, its routed
 * experts are loaded in parts: then slots hold parts, the layer's other tensors have an area of their own, and the parts
 * are read once for every pass over the experts.
 *
 * The host loader makes float32 of the chunks in host memory, on several threads. */
#ifndef EXF_WEIGHTS_WEIGHT_LOADER_H
#define EXF_WEIGHTS_WEIGHT_LOADER_H
#include "weights/shared_chunks.h"
#include "weights/weight_plan.h"

/* ---- to a device ----------------------------------------------------------------------------------- */

typedef struct exf_weight_loader exf_weight_loader;

/* Seconds that all readers together spent on reading, and for which the sender waited for copies; bytes read; how many readers. */
typedef struct {
    double reading, sending;
    uint64_t bytes;
    int readers;
} exf_weight_loader_times;

/* Return the bytes that the loader holds beside the areas: device memory, pinned memory. */
size_t exf_weight_loader_device_bytes(const exf_model *m);
uint64_t exf_weight_loader_host_bytes(const exf_model *m, const exf_weight_loader_options *o);

/* Starts the readers; the first load is EXF_LAYER_EMBED, or options' first_layer. */
exf_code exf_weight_loader_open(exf_weight_loader **out, const exf_model *m, const exf_backend *b, exf_compute compute,
                                const exf_weight_loader_options *o, exf_err *err) EXF_CHECKED;
/* Waits for the next load, points lw at its weights and starts the load after it.  The order
 * is the embedding, the layers, the head; with parts, each MoE layer's other tensors and then
 * its parts, pass after pass: a part leaves lw's other tensors of the layer as they are.
 * Queues that used the load before must be finished. */
exf_code exf_weight_loader_next(exf_weight_loader *s, exf_layer_weights *lw, exf_err *err) EXF_CHECKED;
/* Stops the readers and frees the loader; writes what they did to *times. */
void exf_weight_loader_close(exf_weight_loader *s, exf_weight_loader_times *times); /* both may be NULL */

/* ---- to the host ------------------------------------------------------------------------------------ */

typedef struct exf_host_loader exf_host_loader;

/* Lists the chunks of the pass; options' first_layer, n_layers, head and shared count.  With shared, all ranks open
 * theirs together: ranks whose passes differ, such as those that go on after different layers, read for themselves. */
exf_code exf_host_loader_open(exf_host_loader **out, const exf_model *m, const exf_weight_loader_options *o,
                              exf_err *err) EXF_CHECKED;
/* The next load of the pass, in the order embedding, layers, head: the embedding to table [vocab, H], any other to lw,
 * replacing the former layer's; at most 8 threads of n_threads (0: one per processor) work on it. */
exf_code exf_host_loader_embedding(exf_host_loader *s, float *table, int n_threads, exf_err *err) EXF_CHECKED;
exf_code exf_host_loader_layer(exf_host_loader *s, exf_layer_weights *lw, int n_threads, exf_err *err) EXF_CHECKED;
/* Returns the seconds for which this rank has waited for others, and the bytes that it has read. */
double exf_host_loader_waited(const exf_host_loader *s);
uint64_t exf_host_loader_bytes(const exf_host_loader *s);
void exf_host_loader_close(exf_host_loader *s); /* NULL is allowed */
#endif
