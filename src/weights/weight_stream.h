/* weight_stream.h - a device's weights: the next layer's are read and sent while this
 * one's compute.
 *
 * Reader threads take a layer's tensors piece by piece: bytes as they are stored come
 * from the checkpoint into pinned memory, cross on the reader's own queue and are
 * decoded there.  A layer lies in a slot, one block of the device's memory; with two
 * slots one fills while the other is used, with one they take turns.  Each weight byte
 * is read once.
 *
 * Where a layer is too large for that, its routed experts come in parts: slots are for
 * parts then, everything else of a layer has a place of its own for as long as the layer
 * lasts, and the parts are read as often as there are passes over the experts. */
#ifndef EXF_FORWARD_WEIGHT_STREAM_H
#define EXF_FORWARD_WEIGHT_STREAM_H
#include "weights/layer_weights.h"
#include "weights/weight_reader.h"
#include "weights/weight_turns.h"

typedef struct exf_weight_stream exf_weight_stream;

/* Bytes that the readers hold: of the device's memory, and of pinned memory. */
size_t exf_stream_reader_bytes(const exf_model *m, exf_compute compute, const exf_stream_options *o);
uint64_t exf_stream_host_bytes(const exf_stream_options *o);

/* Starts reading EXF_LAYER_EMBED. */
exf_code exf_weight_stream_open(exf_weight_stream **out, const exf_model *m, const exf_backend *b, exf_compute compute,
                                const exf_stream_options *o, exf_err *err) EXF_CHECKED;
/* Waits until the next in order (the embedding, layers, the head; with parts, after each MoE
 * layer's rest its parts in turn, pass after pass) is there, points lw at it, a part beside
 * what lw has of its layer, and starts the one after.  Queues that used the one before must be
 * done. */
exf_code exf_weight_stream_next(exf_weight_stream *s, exf_layer_weights *lw, exf_err *err) EXF_CHECKED;
/* times: of all readers. */
void exf_weight_stream_close(exf_weight_stream *s, exf_stream_times *times); /* NULL is allowed, for both */
#endif
