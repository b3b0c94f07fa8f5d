/* backend_cuda.cu - the table of CUDA kernels: device, queues, copies. */
#include "kernels/backend.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/compressed_attention.h"
#include "kernels/attention/compressor.h"
#include "kernels/attention/indexer.h"
#include "kernels/attention/rope.h"
#include "kernels/device/backend_memory.cuh"
#include "kernels/device/cuda_queue.cuh"
#include "kernels/fold/correction.h"
#include "kernels/device/gpu_clock.h"
#include "kernels/linear/dequantize.h"
#include "kernels/linear/gemm.h"
#include "kernels/moe/expert_products.h"
#include "kernels/moe/moe_sum.h"
#include "kernels/moe/reuse_outputs.h"
#include "kernels/moe/router.h"
#include "kernels/recurrent/causal_conv.h"
#include "kernels/recurrent/delta_rule.h"
#include "kernels/residual/hyper_connections.h"
#include "kernels/rows/device_rows.h"
#include "kernels/rows/gate.h"
#include "kernels/rows/rmsnorm.h"
#include "kernels/rows/rounding.h"
#include "kernels/rows/rows.h"
#include "kernels/rows/swiglu.h"
#include "kernels/statistics/common_input_sums.h"
#include "kernels/statistics/diagonal.h"
#include "kernels/statistics/divergence.h"
#include "kernels/statistics/layer_sums.h"
#include "kernels/statistics/output_errors.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

static void close_queue(exf_queue *q)
{
    if (!q) return;
    if (q->stream) cudaStreamSynchronize(q->stream);
    if (q->blas) q->cublas->destroy(q->blas);
    cudaFree(q->rounded);
    if (q->stream) cudaStreamDestroy(q->stream);
    free(q);
}

static exf_code open_queue(exf_queue **out, exf_compute compute, exf_err *err)
{
    *out = nullptr;
    if (compute == EXF_COMPUTE_BF16 && !exf_has_bf16_products_cuda())
        return exf_fail(err, EXF_DEVICE,
                        "runtime.compute: bf16: the GPU has no products of bfloat16, as those since compute capability 8.0 have");
    exf_queue *q = static_cast<exf_queue *>(calloc(1, sizeof *q));
    if (!q) return exf_fail(err, EXF_NOSPACE, "out of memory for a CUDA queue");
    int device = 0;
    q->products = compute == EXF_COMPUTE_BF16 ? CUBLAS_COMPUTE_32F_FAST_16BF : CUBLAS_COMPUTE_32F;
    q->cublas = exf_cublas_load(&q->err);
    exf_cuda_note(q, cudaGetDevice(&device), "device");
    exf_cuda_note(q, cudaDeviceGetAttribute(&q->multiprocessors, cudaDevAttrMultiProcessorCount, device), "device");
    if (q->cublas) exf_cuda_note(q, cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking), "stream");
    *out = q;
    exf_code code = q->err.code;
    if (code != EXF_OK) {
        *err = q->err;
        close_queue(q);
        *out = nullptr;
    }
    return code;
}

static void upload(exf_queue *q, void *to, const void *from, size_t bytes)
{
    if (q->err.code == EXF_OK && bytes)
        exf_cuda_note(q, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, q->stream), "upload");
}

static exf_code download(exf_queue *q, void *to, const void *from, size_t bytes, exf_err *err)
{
    if (q->err.code == EXF_OK && bytes)
        exf_cuda_note(q, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, q->stream), "download");
    return exf_finish_cuda(q, err);
}

static void copy(exf_queue *q, void *to, const void *from, size_t bytes)
{
    if (q->err.code == EXF_OK && bytes) exf_cuda_note(q, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, q->stream), "copy");
}

static void zero(exf_queue *q, void *p, size_t bytes)
{
    if (q->err.code == EXF_OK && bytes) exf_cuda_note(q, cudaMemsetAsync(p, 0, bytes, q->stream), "zero");
}

static void follow(exf_queue *q, exf_queue *before)
{
    cudaEvent_t reached;
    if (q->err.code != EXF_OK || !exf_cuda_note(q, cudaEventCreateWithFlags(&reached, cudaEventDisableTiming), "event")) return;
    if (exf_cuda_note(q, cudaEventRecord(reached, before->stream), "event"))
        exf_cuda_note(q, cudaStreamWaitEvent(q->stream, reached, 0), "event");
    cudaEventDestroy(reached); /* once it has been reached */
}

static const char *device_name(void)
{
    static char text[320];
    cudaDeviceProp p;
    int device = 0, runtime = 0;
    if (text[0]) return text;
    if (cudaGetDevice(&device) != cudaSuccess || cudaGetDeviceProperties(&p, device) != cudaSuccess) return "unknown";
    cudaRuntimeGetVersion(&runtime);
    snprintf(text, sizeof text, "%s, CUDA %d.%d", p.name, runtime / 1000, runtime % 1000 / 10);
    return text;
}

static const exf_gpu_operations gpu = {
    exf_has_bf16_products_cuda,
    exf_alloc_staging_cuda, exf_free_staging_cuda, exf_pin_cuda, exf_unpin_cuda,
    exf_memory_cuda, exf_memory_reset_peak_cuda, exf_memory_left_cuda, follow, exf_stamp_cuda,
    exf_dequantize_cuda, exf_check_bf16_cuda, exf_round_rows_cuda, exf_widen_cuda, exf_rmsnorm_rounded_cuda, exf_rmsnorm_split_cuda,
    exf_gate_heads_rounded_cuda, exf_conv_delta_rule_workspace_cuda, exf_conv_delta_rule_cuda, exf_compressed_heads_fit_cuda,
    exf_compressed_heads_cuda, exf_embed_cuda,
    exf_watch_finite_cuda, exf_score_rows_cuda, exf_output_errors_cuda,
    exf_layer_sums_bytes_cuda, exf_layer_sums_add_cuda, exf_layer_sums_take_cuda, exf_layer_sums_close_sequence_cuda,
    exf_gram_matrices_bytes_cuda, exf_gram_matrices_cuda, exf_layer_sums_add_common_input_cuda, exf_diagonal_add_cuda,
    exf_correct_routes_cuda,
};

static const exf_backend table = {
    "cuda", &gpu,
    open_queue, close_queue, exf_finish_cuda, device_name, exf_alloc_cuda, exf_free_cuda, upload, download, copy, zero,
    exf_product_xwt_cuda, exf_product_xwt_many_cuda, exf_gemm_xw_cuda,
    exf_rmsnorm_cuda, exf_add_bias_cuda, exf_copy_columns_cuda, exf_repeat_columns_cuda, exf_sigmoid_gate_cuda, exf_swiglu_cuda,
    exf_add_cuda, exf_gather_rows_cuda, exf_first_not_finite_cuda,
    exf_rope_apply_cuda, exf_attention_workspace_cuda, exf_attention_cuda,
    exf_causal_conv_workspace_cuda, exf_causal_conv_silu_cuda, exf_delta_gates_cuda, exf_l2norm_heads_cuda,
    exf_delta_rule_workspace_cuda,
    exf_delta_rule_cuda, exf_compressed_attention_workspace_cuda, exf_compressed_attention_cuda, exf_compressor_cuda,
    exf_indexer_workspace_cuda, exf_indexer_cuda, exf_hyper_pre_cuda, exf_hyper_post_cuda, exf_hyper_head_cuda, exf_router_cuda,
    exf_experts_workspace_cuda, exf_experts_cuda, exf_switch_weights_cuda, exf_moe_sum_cuda, exf_reuse_outputs_cuda,
};

extern "C" const exf_backend *exf_backend_cuda(exf_err *err)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaSuccess && n > 0) {
        cudaFuncAttributes code;
        e = cudaFuncGetAttributes(&code, exf_capability_kernel());
        if (e == cudaSuccess) return &table;
    }
    cudaGetLastError();
    exf_fail(err, EXF_DEVICE, "no usable CUDA device: %s", n == 0 && e == cudaSuccess ? "none found" : cudaGetErrorString(e));
    return nullptr;
}
