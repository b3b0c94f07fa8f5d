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

/* Beside the numbers of layers: the tensors outside them. */
enum { EXF_LAYER_HEAD = -1, EXF_LAYER_EMBED = -2 };

typedef struct exf_weight_loader exf_weight_loader;

typedef struct {
    int n_slots;   /* 1 or 2 */
    int n_readers; /* threads; 0: as many as the system has, at most 8 */
    int n_layers;  /* layers 0 .. n_layers - 1 will be asked for */
    int head;      /* and then EXF_LAYER_HEAD */
    int part_experts; /* 0: layers come whole; else so many routed experts of a layer are a part of it */
    int passes;       /* with parts: how often a layer's parts will be asked for, first to last each time */
} exf_weight_loader_options;

/* In bytes of the device's memory: a slot; what a layer holds beside its parts (0 where layers
 * come whole); what readers hold, there and of pinned memory.  n_slots and passes do not matter. */
size_t exf_weight_loader_slot_bytes(const exf_model *m, exf_compute compute, const exf_weight_loader_options *o);
size_t exf_weight_loader_base_bytes(const exf_model *m, exf_compute compute, const exf_weight_loader_options *o);
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
/* Seconds that readers spent: in the file system, and sending and decoding; bytes. */
typedef struct {
    double reading, sending;
    uint64_t bytes;
} exf_weight_loader_times;
void exf_weight_loader_close(exf_weight_loader *s, exf_weight_loader_times *times); /* NULL is allowed, for both */
#endif
