/* weight_loader.h - a device's weights: the next layer's are read and sent while this
 * one's compute.
 *
 * Reader threads take a layer's tensors chunk by chunk: bytes as they are stored come
 * from the checkpoint into pinned memory, cross on the reader's own queue and are
 * decoded there.  A layer lies in a slot, one block of the device's memory; with two
 * slots one fills while the other is used, with one they take loads.  Each weight byte
 * is read once.
 *
 * Where a layer is too large for that, its routed experts come in parts: slots are for
 * parts then, everything else of a layer has a place of its own for as long as the layer
 * lasts, and the parts are read as often as there are passes over the experts. */
#ifndef EXF_WEIGHTS_WEIGHT_LOADER_H
#define EXF_WEIGHTS_WEIGHT_LOADER_H
#include "weights/layer_weights.h"
#include "weights/weight_reader.h"
#include "weights/weight_schedule.h"

typedef struct exf_weight_loader exf_weight_loader;

/* Bytes that the readers hold: of the device's memory, and of pinned memory. */
size_t exf_weight_loader_reader_bytes(const exf_model *m, exf_compute compute, const exf_weight_loader_options *o);
uint64_t exf_weight_loader_host_bytes(const exf_weight_loader_options *o);

/* Starts reading EXF_LAYER_EMBED. */
exf_code exf_weight_loader_open(exf_weight_loader **out, const exf_model *m, const exf_backend *b, exf_compute compute,
                                const exf_weight_loader_options *o, exf_err *err) EXF_CHECKED;
/* Waits until the next in order (the embedding, layers, the head; with parts, after each MoE
 * layer's rest its parts in load, pass after pass) is there, points lw at it, a part beside
 * what lw has of its layer, and starts the one after.  Queues that used the one before must be
 * done. */
exf_code exf_weight_loader_next(exf_weight_loader *s, exf_layer_weights *lw, exf_err *err) EXF_CHECKED;
/* times: of all readers. */
void exf_weight_loader_close(exf_weight_loader *s, exf_weight_loader_times *times); /* NULL is allowed, for both */
#endif
