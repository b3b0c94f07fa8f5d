/* backend_cuda.cu - the table of CUDA kernels, and what of it is no kernel: queues, memory, copies, the clock.  backend.h says
 * what each member does. */
#include "kernels/backend.h"
#include "kernels/device/hopper.cuh"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <mutex>
#include <sys/mman.h>
#include <unordered_map>

/* ---- cuBLAS, found at run time ------------------------------------------------------- */

/* dlsym gives data pointers; POSIX promises that they hold functions. */
template <class F> static bool find_function(void *library, const char *name, F *f)
{
    *f = reinterpret_cast<F>(dlsym(library, name));
    return *f != nullptr;
}

/* Finds the functions, or says in *err why not. */
static bool load_cublas(exf_cublas *table, exf_err *err)
{
    char name[64];
    snprintf(name, sizeof name, "libcublas.so.%d", CUBLAS_VER_MAJOR);
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        exf_fail(err, EXF_DEVICE, "cuBLAS cannot be loaded: %s", dlerror());
        return false;
    }
    bool found = find_function(library, "cublasCreate_v2", &table->create) &&
                 find_function(library, "cublasDestroy_v2", &table->destroy) &&
                 find_function(library, "cublasSetStream_v2", &table->set_stream) &&
                 find_function(library, "cublasGetStatusString", &table->status_string) &&
                 find_function(library, "cublasGemmEx", &table->gemm) &&
                 find_function(library, "cublasGemmStridedBatchedEx", &table->gemm_batched);
    if (!found) exf_fail(err, EXF_DEVICE, "%s lacks a function that is needed", name);
    return found;
}

/* Returns NULL and a reason in err if it cannot be loaded. */
static const exf_cublas *cublas_functions(exf_err *err)
{
    static exf_cublas table;
    static exf_err why_not;
    static const bool loaded = load_cublas(&table, &why_not); /* by the first of the threads that ask */
    if (loaded) return &table;
    *err = why_not;
    return nullptr;
}

/* ---- queues and copies ---------------------------------------------------------------- */

static void close_queue(exf_queue *q)
{
    if (!q) return;
    if (q->stream) cudaStreamSynchronize(q->stream);
    if (q->blas) q->cublas->destroy(q->blas);
    cudaFree(q->buffer);
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
    q->cublas = cublas_functions(&q->err);
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

static void wait_for(exf_queue *q, exf_queue *before)
{
    cudaEvent_t reached;
    if (q->err.code != EXF_OK || !exf_cuda_note(q, cudaEventCreateWithFlags(&reached, cudaEventDisableTiming), "event")) return;
    if (exf_cuda_note(q, cudaEventRecord(reached, before->stream), "event"))
        exf_cuda_note(q, cudaStreamWaitEvent(q->stream, reached, 0), "event");
    cudaEventDestroy(reached); /* once it has been reached */
}

/* ---- memory -------------------------------------------------------------------------- */

enum : size_t { PAGE = 4096, HUGE_PAGE = 2 << 20 };

static std::mutex guard;
static std::unordered_map<void *, size_t> held;
static uint64_t now_held, most_held;

/* Adds an allocation to the list, or frees it if the list has no memory. */
static exf_code keep_allocation(void *p, size_t bytes, const char *what, exf_err *err)
{
    std::lock_guard<std::mutex> lock(guard);
    try {
        held[p] = bytes;
    } catch (const std::bad_alloc &) {
        cudaFree(p);
        return exf_fail(err, EXF_NOSPACE, "out of memory for the list of allocations (%s)", what);
    }
    now_held += bytes;
    most_held = now_held > most_held ? now_held : most_held;
    return EXF_OK;
}

static exf_code refuse_memory(const char *kind, size_t bytes, const char *what, cudaError_t e, exf_err *err)
{
    cudaGetLastError(); /* a refused allocation must not be blamed on the next launch */
    return exf_fail(err, e == cudaErrorMemoryAllocation ? EXF_NOSPACE : EXF_DEVICE, "%s memory: %.1f MiB for %s: %s", kind,
                    (double)bytes / 1048576.0, what, cudaGetErrorString(e));
}

static exf_code alloc_memory(void *out, size_t n, size_t size, const char *what, exf_err *err)
{
    void *p = nullptr;
    memcpy(out, &p, sizeof p);
    if (size && n > SIZE_MAX / size) return exf_fail(err, EXF_NOSPACE, "size overflow: %zu x %zu for %s", n, size, what);
    size_t bytes = n * size ? n * size : 1;
    cudaError_t e = cudaMalloc(&p, bytes);
    /* A stream of this thread's own: queues do not wait for the default stream, and this does not wait for their copies. */
    if (e == cudaSuccess) e = cudaMemsetAsync(p, 0, bytes, cudaStreamPerThread);
    if (e == cudaSuccess) e = cudaStreamSynchronize(cudaStreamPerThread);
    if (e != cudaSuccess) {
        cudaFree(p);
        return refuse_memory("GPU", bytes, what, e, err);
    }
    exf_code rc = keep_allocation(p, bytes, what, err);
    if (rc == EXF_OK) memcpy(out, &p, sizeof p);
    return rc;
}

static void free_memory(void *p)
{
    if (!p) return;
    std::lock_guard<std::mutex> lock(guard);
    auto at = held.find(p);
    if (at != held.end()) {
        now_held -= at->second;
        held.erase(at);
    }
    cudaFree(p);
}

static exf_code pin(void *memory, size_t bytes, const char *what, exf_err *err)
{
    cudaError_t e = cudaHostRegister(memory, bytes, cudaHostRegisterDefault);
    return e == cudaSuccess ? EXF_OK : refuse_memory("pinned", bytes, what, e, err);
}

static void unpin(void *memory)
{
    cudaHostUnregister(memory);
}

static exf_code alloc_staging(void *out, size_t bytes, const char *what, exf_err *err)
{
    void *p = nullptr;
    size_t page = bytes < HUGE_PAGE ? PAGE : HUGE_PAGE, whole = (bytes / page + 1) * page;
    memcpy(out, &p, sizeof p);
    if (posix_memalign(&p, page, whole) != 0)
        return exf_fail(err, EXF_NOSPACE, "pinned memory: %.1f MiB for %s: out of memory", (double)bytes / 1048576.0, what);
    if (page == HUGE_PAGE) madvise(p, whole, MADV_HUGEPAGE); /* pinning takes time by the page; refused, it takes longer */
    memset(p, 0, whole);
    exf_code rc = pin(p, whole, what, err);
    if (rc == EXF_OK)
        memcpy(out, &p, sizeof p);
    else
        free(p);
    return rc;
}

static void free_staging(void *p)
{
    if (!p) return;
    unpin(p);
    free(p);
}

static void memory(uint64_t *now, uint64_t *peak)
{
    std::lock_guard<std::mutex> lock(guard);
    *now = now_held;
    *peak = most_held;
}

static void memory_reset_peak(void)
{
    std::lock_guard<std::mutex> lock(guard);
    most_held = now_held;
}

static exf_code memory_left(uint64_t *bytes, exf_err *err)
{
    size_t free = 0, total = 0;
    cudaError_t e = cudaMemGetInfo(&free, &total);
    *bytes = free;
    return e == cudaSuccess ? EXF_OK : exf_fail(err, EXF_DEVICE, "GPU memory: %s", cudaGetErrorString(e));
}

/* ---- the clock ------------------------------------------------------------------------ */

static __global__ void stamp(volatile unsigned long long *ns)
{
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    *ns = now;
    __threadfence_system();
}

static void stamp_time(exf_queue *q, uint64_t *ns)
{
    EXF_LAUNCH(q, "stamp", stamp, 1, 1, 0, reinterpret_cast<unsigned long long *>(ns));
}

/* ---- the table ------------------------------------------------------------------------ */

static const char *device_name(void)
{
    static char of_wgmma[320], of_mma[320];
    char *text = exf_uses_mma() ? of_mma : of_wgmma;
    cudaDeviceProp p;
    int device = 0, runtime = 0;
    if (text[0]) return text;
    if (cudaGetDevice(&device) != cudaSuccess || cudaGetDeviceProperties(&p, device) != cudaSuccess) return "unknown";
    cudaRuntimeGetVersion(&runtime);
    snprintf(text, sizeof of_mma, "%s, CUDA %d.%d%s", p.name, runtime / 1000, runtime % 1000 / 10,
             text == of_mma ? ", mma.sync" : "");
    return text;
}

static const exf_gpu_operations gpu = {
    .has_bf16 = exf_has_bf16_products_cuda,
    .choose_tensor_cores = exf_choose_tensor_cores_cuda,
    .warm_up_products = exf_warm_up_products_cuda,
    .alloc_staging = alloc_staging,
    .free_staging = free_staging,
    .pin = pin,
    .unpin = unpin,
    .memory = memory,
    .memory_reset_peak = memory_reset_peak,
    .memory_left = memory_left,
    .wait_for = wait_for,
    .stamp = stamp_time,
    .dequantize = exf_dequantize_cuda,
    .check_bf16 = exf_check_bf16_cuda,
    .round_rows = exf_round_rows_cuda,
    .widen = exf_widen_cuda,
    .rmsnorm_rounded = exf_rmsnorm_rounded_cuda,
    .rmsnorm_split = exf_rmsnorm_split_cuda,
    .gate_heads_rounded = exf_gate_heads_rounded_cuda,
    .conv_delta_rule_workspace = exf_conv_delta_rule_workspace_cuda,
    .conv_delta_rule = exf_conv_delta_rule_cuda,
    .compressed_heads_fit = exf_compressed_heads_fit_cuda,
    .compressed_heads = exf_compressed_heads_cuda,
    .embed = exf_embed_cuda,
    .watch_finite = exf_watch_finite_cuda,
    .score_rows = exf_score_rows_cuda,
    .output_errors = exf_output_errors_cuda,
    .row_energies = exf_row_energies_cuda,
    .layer_sums_bytes = exf_layer_sums_bytes_cuda,
    .layer_sums_add = exf_layer_sums_add_cuda,
    .layer_sums_take = exf_layer_sums_take_cuda,
    .layer_sums_close_sequence = exf_layer_sums_close_sequence_cuda,
    .layer_sums_turn_half = exf_layer_sums_turn_half_cuda,
    .layer_sums_cells_before = exf_layer_sums_cells_before_cuda,
    .layer_sums_cells_added = exf_layer_sums_cells_added_cuda,
    .gram_matrices_bytes = exf_gram_matrices_bytes_cuda,
    .gram_matrices = exf_gram_matrices_cuda,
    .layer_sums_add_common_input = exf_layer_sums_add_common_input_cuda,
    .diagonal_add = exf_diagonal_add_cuda,
    .lowrank_add = exf_lowrank_add_cuda,
    .share_memory = exf_share_memory_cuda,
    .open_memory = exf_open_memory_cuda,
    .close_memory = exf_close_memory_cuda,
    .add_exact = exf_add_exact_cuda,
    .add_integers = exf_add_integers_cuda,
    .residual_moments = exf_residual_moments_cuda,
    .subspace_iterate = exf_subspace_iterate_cuda,
    .subspace_rotate = exf_subspace_rotate_cuda,
    .norm_products_add = exf_norm_products_add_cuda,
    .slot_logits = exf_slot_logits_cuda,
    .correct_routes = exf_correct_routes_cuda,
    .norm_head_rows = exf_norm_head_rows_cuda,
    .predict_norms = exf_predict_norms_cuda,
    .prefill_routes = exf_prefill_routes_cuda,
    .step_routes = exf_step_routes_cuda,
    .count_row_experts = exf_count_row_experts_cuda,
    .count_step_experts = exf_count_step_experts_cuda,
    .count_slots = exf_count_slots_cuda,
    .carry = exf_carry_cuda,
};

static const exf_backend table = {
    .name = "cuda",
    .gpu = &gpu,
    .open = open_queue,
    .close = close_queue,
    .finish = exf_finish_cuda,
    .device = device_name,
    .alloc = alloc_memory,
    .free = free_memory,
    .upload = upload,
    .download = download,
    .copy = copy,
    .zero = zero,
    .gemm_xwt = exf_gemm_xwt_cuda,
    .gemm_xwt_many = exf_gemm_xwt_many_cuda,
    .gemm_xw = exf_gemm_xw_cuda,
    .rmsnorm = exf_rmsnorm_cuda,
    .layernorm = exf_layernorm_cuda,
    .scale_rows = exf_scale_rows_cuda,
    .add_bias = exf_add_bias_cuda,
    .clamp = exf_clamp_cuda,
    .copy_columns = exf_copy_columns_cuda,
    .repeat_columns = exf_repeat_columns_cuda,
    .sigmoid_gate = exf_sigmoid_gate_cuda,
    .swiglu = exf_swiglu_cuda,
    .add = exf_add_cuda,
    .scale = exf_scale_cuda,
    .soft_cap = exf_soft_cap_cuda,
    .gather_rows = exf_gather_rows_cuda,
    .switch_weights = exf_switch_weights_cuda,
    .first_not_finite = exf_first_not_finite_cuda,
    .rope = exf_rope_apply_cuda,
    .attention_workspace = exf_attention_workspace_cuda,
    .attention = exf_attention_cuda,
    .causal_conv_workspace = exf_causal_conv_workspace_cuda,
    .causal_conv_silu = exf_causal_conv_silu_cuda,
    .delta_gates = exf_delta_gates_cuda,
    .l2norm_heads = exf_l2norm_heads_cuda,
    .delta_rule_workspace = exf_delta_rule_workspace_cuda,
    .delta_rule = exf_delta_rule_cuda,
    .compressed_attention_workspace = exf_compressed_attention_workspace_cuda,
    .compressed_attention = exf_compressed_attention_cuda,
    .compressor = exf_compressor_cuda,
    .indexer_workspace = exf_indexer_workspace_cuda,
    .indexer = exf_indexer_cuda,
    .hyper_pre = exf_hyper_pre_cuda,
    .hyper_post = exf_hyper_post_cuda,
    .hyper_input = exf_hyper_input_cuda,
    .hyper_head = exf_hyper_head_cuda,
    .router = exf_router_cuda,
    .experts_workspace = exf_experts_workspace_cuda,
    .experts = exf_experts_cuda,
    .moe_sum = exf_moe_sum_cuda,
    .reuse_outputs = exf_reuse_outputs_cuda,
};

extern "C" const exf_backend *exf_backend_cuda(exf_err *err)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaSuccess && n > 0) {
        cudaFuncAttributes code; /* any kernel's: are there any for this GPU? */
        e = cudaFuncGetAttributes(&code, (const void *)stamp);
        if (e == cudaSuccess) return &table;
    }
    cudaGetLastError();
    exf_fail(err, EXF_DEVICE, "no usable CUDA device: %s", n == 0 && e == cudaSuccess ? "none found" : cudaGetErrorString(e));
    return nullptr;
}
