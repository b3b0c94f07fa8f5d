/* host_loader.h - a host loader reads weights into host memory for a pass on the CPU and makes float32 of them, chunk by
 * chunk on several threads.  Ranks read together (shared_chunks.h): each chunk is read and hashed once for all of them. */
#ifndef EXF_WEIGHTS_HOST_LOADER_H
#define EXF_WEIGHTS_HOST_LOADER_H
#include "weights/layer_weights.h"
#include "weights/shared_chunks.h"
#include "weights/weight_plan.h"

typedef struct exf_host_loader exf_host_loader;

/* Lists the chunks of the pass; options' first_layer, n_layers, head, chosen and shared count.  With shared, all ranks open
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
