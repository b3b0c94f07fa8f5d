/* bench_mixers.cu - how long the kernels of the sequence mixers take on this GPU, at the
 * shapes of released models: medians, beside what the machine itself can do.  Inputs are
 * random; memory-bound operations go round several copies, larger together than the
 * caches.  usage: bench_mixers [part of an operation's name] */
#include "kernels/backend.h"
#include "kernels/device/cuda_queue.cuh"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

enum { REPEATS = 15, T = 4096 };
static const exf_backend *B;
static exf_queue *Q[2]; /* by exf_compute */
static const char *only = "";
static std::vector<void *> kept;

static void check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return;
    printf("%s: %s\n", what, cudaGetErrorString(e));
    exit(9);
}

/* Uniform in (low, high). */
static __global__ void fill(float *x, size_t n, unsigned seed, float low, float high)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        unsigned long long z = (i + 1) * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 27) * 0x94d049bb133111ebull;
        x[i] = low + (high - low) * (float)(z >> 40) * 0x1p-24f;
    }
}

static float *reals(size_t n, float low = -1, float high = 1)
{
    float *x;
    check(cudaMalloc(&x, n * 4 + 16), "memory");
    fill<<<1024, 256>>>(x, n, (unsigned)kept.size() + 1, low, high);
    check(cudaDeviceSynchronize(), "fill");
    kept.push_back(x);
    return x;
}

static void drop(void)
{
    for (void *p : kept) cudaFree(p);
    kept.clear();
}

/* Median of milliseconds per call; call i gets i, to pick a copy. */
static double time_of(exf_queue *q, int calls, const std::function<void(int)> &run)
{
    std::vector<float> ms(REPEATS);
    cudaEvent_t from, to;
    exf_err err;
    cudaEventCreate(&from);
    cudaEventCreate(&to);
    for (int r = -3, i = 0; r < REPEATS; r++) {
        cudaEventRecord(from, q->stream);
        for (int c = 0; c < calls; c++) run(i++);
        cudaEventRecord(to, q->stream);
        if (B->finish(q, &err) != EXF_OK) {
            printf("failed: %s\n", err.msg);
            exit(9);
        }
        if (r >= 0) cudaEventElapsedTime(&ms[(size_t)r], from, to);
    }
    std::sort(ms.begin(), ms.end());
    return ms[REPEATS / 2] / calls;
}

static bool wanted(const char *name)
{
    return strstr(name, only) != nullptr;
}

static void flops(const char *name, const char *mode, double ms, double n)
{
    printf("%-44s %-5s %9.4f ms %8.1f TFLOP/s\n", name, mode, ms, n / ms * 1e-9);
}

static void bytes(const char *name, double ms, double n)
{
    printf("%-44s       %9.4f ms %8.0f GB/s\n", name, ms, n / ms * 1e-6);
}

static const char *const modes[] = {"f32", "bf16"};

/* ---- what the machine can do ------------------------------------------------------ */

static void ceilings(void)
{
    size_t n = (size_t)1 << 30;
    int side = 8192;
    char *a = (char *)reals(n / 4), *b = (char *)reals(n / 4);
    const float one = 1, nought = 0;
    exf_cublas_ready(Q[0]); /* a queue makes its handle at its first product */
    bytes("ceiling: device copy of 1 GiB", time_of(Q[0], 4, [=](int) { B->copy(Q[0], b, a, n); }), 2.0 * n);
    flops("ceiling: cuBLAS bf16 8192^3", "",
          time_of(Q[0], 4,
                  [=](int) {
                      exf_cublas_note(Q[0],
                                      Q[0]->cublas->gemm(Q[0]->blas, CUBLAS_OP_T, CUBLAS_OP_N, side, side, side, &one, a,
                                                         CUDA_R_16BF, side, a + n / 4, CUDA_R_16BF, side, &nought, b, CUDA_R_16BF,
                                                         side, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                                      "gemm");
                  }),
          2.0 * side * side * side);
    flops("ceiling: cuBLAS f32 4096^3", "",
          time_of(Q[0], 2,
                  [=](int) {
                      B->gemm_xwt(Q[0], (float *)b, 4096, exf_f32((float *)a), 4096, exf_f32((float *)a + (4096 << 12)), 4096, 4096,
                                  4096, 4096, 1, 0);
                  }),
          2.0 * 4096 * 4096 * 4096);
    drop();
}

/* Kernels of bfloat16 queues by mma.sync from here on, or as the GPU has them. */
static void choose(exf_tensor_cores by)
{
    exf_err err;
    if (B->gpu->choose_tensor_cores(by, &err) == EXF_OK) return;
    printf("%s\n", err.msg);
    exit(9);
}

/* ---- attention --------------------------------------------------------------------- */

static const struct {
    const char *name;
    int t, heads, kv, d, dv;
} attentions[] = {
    {"attention qwen3-30b-a3b 32/4 128", T, 32, 4, 128, 128},     {"attention qwen3.5-35b-a3b 16/2 256", T, 16, 2, 256, 256},
    {"attention glm-4.5-air 96/8 128", T, 96, 8, 128, 128},       {"attention deepseek-v2-lite 1 head 192/128", T, 1, 1, 192, 128},
    {"attention deepseek-v2-lite 16 heads", T, 16, 16, 192, 128}, {"attention absorbed 16/1 576/512", T, 16, 1, 576, 512},
    {"attention qwen3-30b-a3b T=512", 512, 32, 4, 128, 128},
};

static void attention(void)
{
    for (auto &a : attentions) {
        if (!wanted(a.name)) continue;
        exf_attention_shape s = {
            a.t, a.heads, a.kv, a.d, a.dv, a.heads * a.d, a.kv * a.d, a.kv * a.dv, a.heads * a.dv, (float)(1 / sqrt(a.d)), 0,
            nullptr, nullptr, 0};
        size_t n = (size_t)a.t;
        float *q = reals(n * a.heads * a.d, -2, 2), *k = reals(n * a.kv * a.d, -2, 2), *v = reals(n * a.kv * a.dv);
        float *out = reals(n * a.heads * a.dv), *space = reals(B->attention_workspace(&s));
        for (int m = 0; m < 2; m++)
            flops(a.name, modes[m], time_of(Q[m], m ? 4 : 1, [=](int) { B->attention(Q[m], out, q, k, v, &s, space); }),
                  (double)a.heads * (a.d + a.dv) * n * (n + 1));
        choose(EXF_TENSOR_CORES_MMA);
        for (int m = 0; m < 2; m++)
            flops(a.name, m ? "mma" : "f mma", time_of(Q[m], m ? 4 : 1, [=](int) { B->attention(Q[m], out, q, k, v, &s, space); }),
                  (double)a.heads * (a.d + a.dv) * n * (n + 1));
        choose(EXF_TENSOR_CORES_AUTO);
        drop();
    }
}

/* A sequence of DeepSeek-V4 Flash; of row i's entries top_k are chosen where there are more. */
static void compressed_layer(const char *name, int ratio, int top_k)
{
    enum { HEADS = 64, D = 512, WINDOW = 128 };
    if (!wanted(name)) return;
    size_t n = ratio ? T / ratio : 0, bytes = (size_t)T * (n + 4) / 4 * 4;
    float *q = reals((size_t)T * HEADS * D, -2, 2), *tokens = reals((size_t)T * D), *entries = reals((n + 1) * D),
          *sink = reals(HEADS), *space = reals(B->compressed_attention_workspace(HEADS, T, T, WINDOW, ratio));
    unsigned char *chosen = (unsigned char *)reals(bytes / 4);
    std::vector<unsigned char> mark(bytes);
    double keys = 0;
    for (size_t i = 0; i < T; i++) {
        size_t visible = ratio ? (i + 1) / (size_t)ratio : 0, seen = visible;
        for (size_t w = 0; top_k && w < visible; w++)
            mark[i * n + w] = visible <= (size_t)top_k || (((i * n + w) * 2654435761u) >> 7) % visible < (size_t)top_k;
        if (top_k && seen > (size_t)top_k) seen = (size_t)top_k;
        keys += (double)(std::min(i + 1, (size_t)WINDOW) + seen);
    }
    check(cudaMemcpy(chosen, mark.data(), bytes, cudaMemcpyHostToDevice), "chosen");
    exf_compressed_attention_shape s = {0, T, HEADS, D, WINDOW, ratio, 0.044f};
    exf_compressed_keys k = {tokens, entries, top_k ? chosen : nullptr, sink};
    for (int m = 0; m < 2; m++) /* in place, as a layer has it: values stay within the keys' */
        flops(name, modes[m], time_of(Q[m], 1, [&](int) { B->compressed_attention(Q[m], q, q, &k, &s, space); }),
              4.0 * HEADS * D * keys);
    choose(EXF_TENSOR_CORES_MMA);
    flops(name, "mma", time_of(Q[1], 1, [&](int) { B->compressed_attention(Q[1], q, q, &k, &s, space); }), 4.0 * HEADS * D * keys);
    choose(EXF_TENSOR_CORES_AUTO);
    drop();
}

static void indexer(const char *name)
{
    enum { HEADS = 64, D = 128, RATIO = 4, N = T / RATIO };
    if (!wanted(name)) return;
    float *q = reals((size_t)T * HEADS * D), *w = reals((size_t)T * HEADS), *keys = reals((size_t)N * D),
          *space = reals(B->indexer_workspace(T, N));
    unsigned char *chosen = (unsigned char *)reals((size_t)T * N / 4);
    exf_indexer_shape s = {0, T, HEADS, D, RATIO, 512, N};
    for (int m = 0; m < 2; m++)
        flops(name, modes[m], time_of(Q[m], 1, [=](int) { B->indexer(Q[m], chosen, q, w, keys, &s, space); }),
              2.0 * HEADS * D * 0.75 * N * T / 2); /* of the rows that have a choice */
    drop();
}

static void delta_rule(const char *name)
{
    enum { HK = 16, HV = 32, D = 128, LD = 2 * HK * D + HV * D };
    if (!wanted(name)) return;
    exf_delta_shape s = {T, HK, HV, D, D, LD, LD, LD, HV * D};
    float *qkv = reals((size_t)T * LD), *decay = reals((size_t)T * HV, 0.8f, 1), *beta = reals((size_t)T * HV, 0, 1),
          *out = reals((size_t)T * HV * D);
    float *space = reals(B->delta_rule_workspace(&s));
    B->l2norm_heads(Q[0], qkv, LD, T, 2 * HK, D, 1e-6, 1);
    for (int m = 0; m < 2; m++)
        flops(name, modes[m],
              time_of(Q[m], 1, [=](int) { B->delta_rule(Q[m], out, qkv, qkv + HK * D, qkv + 2 * HK * D, decay, beta, &s, space); }),
              7.0 * T * HV * D * D);
    drop();
}

/* ---- bound by memory ------------------------------------------------------------------ */

enum { COPIES = 4 };

static std::vector<float *> copies(size_t n)
{
    std::vector<float *> x;
    for (int i = 0; i < COPIES; i++) x.push_back(reals(n));
    return x;
}

static void moving(const char *name, double n, const std::function<void(int)> &run)
{
    if (wanted(name)) bytes(name, time_of(Q[0], COPIES, [&](int i) { run(i % COPIES); }), n);
    drop();
}

static void rows(void)
{
    enum { H = 2048, HEADS = 32, D = 128, CHANNELS = 8192 };
    size_t n = (size_t)T * HEADS * D, wide = (size_t)T * CHANNELS;
    auto x = copies(n), y = copies(n);
    float *w = reals(CHANNELS), *c = reals((size_t)T * D / 2), *s = reals((size_t)T * D / 2);
    exf_rope_shape neox = {T, HEADS, D, HEADS * D, D, 0, 1, 0, 0, 0, nullptr, 0}, paired = neox, normed = neox;
    paired.interleaved = 1;
    normed.normed = D;
    normed.eps = 1e-6;
    moving("rmsnorm 4096 x 4096", 8.0 * n, [=](int i) { B->rmsnorm(Q[0], y[i], 4096, x[i], 4096, w, T, 4096, 1e-6); });
    x = copies(n), y = copies(n), w = reals(CHANNELS);
    moving("rmsnorm heads of 128, in place", 8.0 * n, [=](int i) { B->rmsnorm(Q[0], x[i], D, x[i], D, w, T * HEADS, D, 1e-6); });
    x = copies(n), c = reals((size_t)T * D / 2), s = reals((size_t)T * D / 2);
    moving("rope 32 heads of 128", 8.0 * n, [=](int i) { B->rope(Q[0], x[i], &neox, c, s); });
    x = copies(n), c = reals((size_t)T * D / 2), s = reals((size_t)T * D / 2);
    moving("rope interleaved", 8.0 * n, [=](int i) { B->rope(Q[0], x[i], &paired, c, s); });
    x = copies(n), c = reals((size_t)T * D / 2), s = reals((size_t)T * D / 2), normed.norm = reals(D);
    moving("norm and rope 32 heads of 128", 8.0 * n, [=](int i) { B->rope(Q[0], x[i], &normed, c, s); });
    x = copies(n);
    moving("l2norm heads of 128", 8.0 * n, [=](int i) { B->l2norm_heads(Q[0], x[i], HEADS * D, T, HEADS, D, 1e-6, 1); });
    x = copies(n), y = copies(2 * n);
    moving("sigmoid gate, 16 heads of 256", 12.0 * n, [=](int i) { B->sigmoid_gate(Q[0], x[i], y[i] + 256, T * 16, 256, 512); });
    x = copies(n), y = copies(2 * n);
    moving("copy columns, 16 heads of 256", 8.0 * n, [=](int i) { B->copy_columns(Q[0], x[i], 256, y[i], 512, T * 16, 256); });
    x = copies(n), w = reals(CHANNELS);
    moving("add bias", 8.0 * n, [=](int i) { B->add_bias(Q[0], x[i], w, T, HEADS * D); });
    x = copies((size_t)T * H), w = reals(H), c = reals(T);
    moving("switch weights 2048", 4.0 * T * H, [=](int i) { B->switch_weights(Q[0], c, x[i], w, T, H); });
    x = copies(wide), w = reals(CHANNELS * 4), c = reals(B->causal_conv_workspace(CHANNELS, 4));
    moving("causal conv 8192 x 4", 8.0 * wide, [=](int i) { B->causal_conv_silu(Q[0], x[i], CHANNELS, w, T, CHANNELS, 4, c); });
}

static void pools(const char *name, int ratio, int overlap)
{
    enum { D = 512 };
    int width = overlap ? 2 * D : D;
    auto kv = copies((size_t)T * width), gate = copies((size_t)T * width), out = copies((size_t)T / ratio * D);
    float *ape = reals((size_t)ratio * width);
    exf_compressor_shape s = {T / ratio, ratio, D, overlap};
    moving(name, 8.0 * T * width + 4.0 * T / ratio * D, [=](int i) { B->compressor(Q[0], out[i], kv[i], gate[i], ape, &s); });
}

static void streams(void)
{
    enum { S = 4, H = 4096, MIX = (2 + S) * S };
    size_t n = (size_t)T * S * H;
    for (int close = 0; close < 2; close++) {
        auto x = copies(n), u = copies((size_t)T * H);
        float *fn = reals((size_t)MIX * S * H, -0.01f, 0.01f), *base = reals(MIX), *scale = reals(3),
              *mixing = reals((size_t)T * MIX, 0, 0.3f);
        exf_hyper_shape s = {T, S, H, 20, 1e-6, 1e-6, fn, base, scale};
        if (close)
            moving("streams close 4 x 4096", 8.0 * n + 4.0 * T * H, [=](int i) { B->hyper_post(Q[0], x[i], u[i], mixing, &s); });
        else
            moving("streams open 4 x 4096", 4.0 * n + 4.0 * T * H, [=](int i) { B->hyper_pre(Q[0], u[i], mixing, x[i], &s); });
    }
}

int main(int argc, char **argv)
{
    exf_err err;
    if (argc > 1) only = argv[1];
    B = exf_backend_cuda(&err);
    if (!B || B->open(&Q[0], EXF_COMPUTE_F32, &err) != EXF_OK || B->open(&Q[1], EXF_COMPUTE_BF16, &err) != EXF_OK) {
        printf("%s\n", err.msg);
        return 9;
    }
    printf("%s, %d tokens, medians of %d\n", B->device(), T, REPEATS);
    if (wanted("ceiling")) ceilings();
    attention();
    compressed_layer("compressed attention, window alone", 0, 0);
    compressed_layer("compressed attention, 1 of 128", 128, 0);
    compressed_layer("compressed attention, 512 of 1 of 4", 4, 512);
    delta_rule("delta rule qwen3.5-35b-a3b 16/32 128");
    indexer("indexer, 64 heads of 128");
    rows();
    pools("compressor 1 of 4, overlapping", 4, 1);
    pools("compressor 1 of 128", 128, 0);
    streams();
    return 0;
}
