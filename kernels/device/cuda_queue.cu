/* cuda_queue.cu - the first failure of a queue, its cuBLAS handle and its buffer; see cuda_queue.cuh. */
#include "kernels/device/cuda_queue.cuh"

int exf_cuda_note(exf_queue *q, cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return 1;
    exf_code code = e == cudaErrorMemoryAllocation ? EXF_NOSPACE : EXF_DEVICE;
    if (q->err.code == EXF_OK) exf_fail(&q->err, code, "CUDA: %s: %s", what, cudaGetErrorString(e));
    cudaGetLastError(); /* a refused launch must not be blamed on the next one */
    return 0;
}

int exf_cublas_note(exf_queue *q, cublasStatus_t e, const char *what)
{
    if (e == CUBLAS_STATUS_SUCCESS) return 1;
    if (q->err.code == EXF_OK) exf_fail(&q->err, EXF_DEVICE, "cuBLAS: %s: %s", what, q->cublas->status_string(e));
    return 0;
}

int exf_cublas_ready(exf_queue *q)
{
    if (q->err.code != EXF_OK) return 0;
    if (q->blas) return 1;
    return exf_cublas_note(q, q->cublas->create(&q->blas), "handle") &&
           exf_cublas_note(q, q->cublas->set_stream(q->blas, q->stream), "stream");
}

uint16_t *exf_queue_buffer(exf_queue *q)
{
    if (q->err.code != EXF_OK) return nullptr;
    if (!q->buffer) exf_cuda_note(q, cudaMalloc((void **)&q->buffer, EXF_BUFFER_BYTES + EXF_BUFFER_TAIL), "queue's buffer");
    return q->buffer;
}

exf_code exf_finish_cuda(exf_queue *q, exf_err *err)
{
    exf_cuda_note(q, cudaStreamSynchronize(q->stream), "finish");
    if (q->err.code == EXF_OK) return EXF_OK;
    *err = q->err;
    q->err.code = EXF_OK;
    return err->code;
}
