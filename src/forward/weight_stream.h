/* weight_stream.h - a device's weights: the next layer's are read and sent while this
 * one's compute.
 *
 * Reader threads take a layer's tensors piece by piece: bytes as they are stored come
 * from the checkpoint into pinned memory, cross on the reader's own queue and are
 * decoded there.  A layer lies in a slot, one block of the device's memory; with two
 * slots one fills while the other is used, with one they take turns.
 * Each weight byte is read once. */
#ifndef EXF_FORWARD_WEIGHT_STREAM_H
#define EXF_FORWARD_WEIGHT_STREAM_H
#include "forward/layer_weights.h"

/* Beside the numbers of layers: the tensors outside them. */
enum { EXF_LAYER_HEAD = -1, EXF_LAYER_EMBED = -2 };

typedef struct exf_weight_stream exf_weight_stream;

typedef struct {
    int n_slots;   /* 1 or 2 */
    int n_readers; /* threads; 0: as many as the system has, at most 8 */
    int n_layers;  /* layers 0 .. n_layers - 1 will be asked for */
    int head;      /* and then EXF_LAYER_HEAD */
} exf_stream_options;

/* In bytes of the device's memory: a slot, and what readers hold; of pinned memory, what they hold. */
size_t exf_stream_slot_bytes(const exf_model *m, exf_compute compute, const exf_stream_options *o);
size_t exf_stream_reader_bytes(const exf_model *m, exf_compute compute, const exf_stream_options *o);
uint64_t exf_stream_host_bytes(const exf_stream_options *o);

/* Starts reading EXF_LAYER_EMBED. */
exf_code exf_weight_stream_open(exf_weight_stream **out, const exf_model *m, const exf_backend *b, exf_compute compute,
                                const exf_stream_options *o, exf_err *err) EXF_CHECKED;
/* Waits until the next in order (the embedding, layers, the head) is there, points lw
 * at it and starts the one after.  Queues that used the one before must be done. */
exf_code exf_weight_stream_next(exf_weight_stream *s, exf_layer_weights *lw, exf_err *err) EXF_CHECKED;
/* Seconds that readers spent: in the file system, and sending and decoding; bytes. */
typedef struct {
    double reading, sending;
    uint64_t bytes;
} exf_stream_times;
void exf_weight_stream_close(exf_weight_stream *s, exf_stream_times *times); /* NULL is allowed, for both */
#endif
