/* device_warm_up.h - opens a queue on a GPU, which loads cuBLAS, while the model and the text are read: 0.15 s on an H200. */
#ifndef EXF_TOOL_DEVICE_WARM_UP_H
#define EXF_TOOL_DEVICE_WARM_UP_H
#include "base/thread_pool.h"
#include "kernels/backend.h"

typedef struct {
    const exf_backend *backend;
    exf_compute compute;
    exf_background opening;
} exf_device_warm_up;

/* Starts the thread, on a backend with a GPU.  A failure is left to the pass, which opens queues of its own. */
void exf_device_warm_up_start(exf_device_warm_up *w, const exf_backend *b, exf_compute compute);
/* Waits for the thread. */
void exf_device_warm_up_wait(exf_device_warm_up *w);
#endif
