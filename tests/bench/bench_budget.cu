/* bench_budget.cu - what a budget per token costs and saves on this GPU: the fold beside the joint
 * prefill fold and stand-ins beside the joint decode fold, medians out of a CUDA graph, and the experts'
 * products that follow, with all routes, with a fixed P and with the budget of the same mean.
 *
 * Routes are those of a random router, outputs random vectors; the experts' shapes are released ones. */
#include "exfold/fold.h"
#include "kernels/backend.h"
#include "kernels/device/cuda_queue.cuh"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

enum { T = 8192, K = 8, P = 4, BATCH = 256, SETS = 16, REPEATS = 15, DIM = 24 };
static const exf_backend *B;
static exf_queue *Q;

static void check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return;
    printf("%s: %s\n", what, cudaGetErrorString(e));
    exit(9);
}

static void must(int status, const char *what)
{
    if (status == 0) return;
    printf("%s: status %d\n", what, status);
    exit(9);
}

static void *room(size_t bytes)
{
    void *p;
    check(cudaMalloc(&p, bytes), "memory");
    return p;
}

template <class X> static X *send(const std::vector<X> &v)
{
    X *p = (X *)room(v.size() * sizeof(X));
    check(cudaMemcpy(p, v.data(), v.size() * sizeof(X), cudaMemcpyHostToDevice), "copy");
    return p;
}

static double uniform(void)
{
    static unsigned long long state = 1;
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(state >> 11) * 0x1p-53;
}

static double normal(void)
{
    return sqrt(-2 * log(uniform() + 1e-300)) * cos(6.283185307179586 * uniform());
}

/* ---- one layer of a model ------------------------------------------------------------------ */

struct layer {
    int e;
    exf_fold_tables t;
    std::vector<int> ids;       /* [SETS, T, K] on the host */
    int *ids_device, *in_place; /* [SETS, T, K]; decode rewrites in_place */
    float *weights, *weights_in_place, *scores; /* scores [BATCH, E] */
};

static exf_fold_tables random_tables(int e)
{
    std::vector<double> v((size_t)e * DIM);
    std::vector<float> cosine((size_t)e * e), rms((size_t)e);
    for (double &x : v) x = normal() + 0.5;
    for (int a = 0; a < e; a++)
        for (int b = 0; b < e; b++) {
            double ab = 0, aa = 0, bb = 0;
            for (int i = 0; i < DIM; i++) {
                ab += v[(size_t)a * DIM + i] * v[(size_t)b * DIM + i];
                aa += v[(size_t)a * DIM + i] * v[(size_t)a * DIM + i];
                bb += v[(size_t)b * DIM + i] * v[(size_t)b * DIM + i];
            }
            cosine[(size_t)a * e + b] = a == b ? 1 : (float)(ab / sqrt(aa * bb));
        }
    for (float &x : rms) x = (float)(0.5 + uniform());
    exf_fold_tables t = {};
    t.cosine = send(cosine);
    t.norms = t.rms = send(rms);
    t.n_experts = e;
    return t;
}

/* The K largest of a softmax over random logits, sharper in some tokens than in others. */
static void random_routes(int e, int *ids, float *w)
{
    std::vector<std::pair<double, int>> z((size_t)e);
    double sharp = 0.5 + 2.5 * uniform(), sum = 0;
    for (int i = 0; i < e; i++) z[(size_t)i] = {sharp * normal(), i};
    std::partial_sort(z.begin(), z.begin() + K, z.end(), [](auto a, auto b) { return a.first > b.first; });
    for (int k = 0; k < K; k++) sum += exp(z[(size_t)k].first - z[0].first);
    for (int k = 0; k < K; k++) {
        ids[k] = z[(size_t)k].second;
        w[k] = (float)(exp(z[(size_t)k].first - z[0].first) / sum);
    }
}

static layer random_layer(int e)
{
    layer l = {};
    l.e = e;
    l.t = random_tables(e);
    l.ids.resize((size_t)SETS * T * K);
    std::vector<float> w(l.ids.size()), scores((size_t)BATCH * e);
    for (size_t row = 0; row < (size_t)SETS * T; row++) random_routes(e, &l.ids[row * K], &w[row * K]);
    for (float &x : scores) x = (float)uniform();
    l.ids_device = send(l.ids);
    l.in_place = send(l.ids);
    l.weights = send(w);
    l.weights_in_place = send(w);
    l.scores = send(scores);
    return l;
}

static exf_fold_routes routes_of(int *ids, float *w, int set, int rows, int width)
{
    exf_fold_routes r = {};
    r.ids = ids + (size_t)set * T * K;
    r.weights = w + (size_t)set * T * K;
    r.rows = rows;
    r.width = width;
    return r;
}

/* ---- timing ---------------------------------------------------------------------------------- */

static double median_of(std::vector<float> ms)
{
    std::sort(ms.begin(), ms.end());
    return ms[ms.size() / 2];
}

/* Median microseconds of a call, SETS of which are captured into one graph; before: restores what calls change. */
static double graph_time(const std::function<void(int)> &call, const std::function<void()> &before)
{
    cudaGraph_t graph;
    cudaGraphExec_t step;
    cudaEvent_t from, to;
    std::vector<float> ms;
    before();
    call(0);
    check(cudaStreamSynchronize(Q->stream), "warm");
    check(cudaStreamBeginCapture(Q->stream, cudaStreamCaptureModeGlobal), "capture");
    for (int i = 0; i < SETS; i++) call(i);
    check(cudaStreamEndCapture(Q->stream, &graph), "capture");
    check(cudaGraphInstantiateWithFlags(&step, graph, 0), "graph");
    cudaEventCreate(&from);
    cudaEventCreate(&to);
    for (int r = -3; r < REPEATS; r++) {
        float one;
        before();
        cudaEventRecord(from, Q->stream);
        check(cudaGraphLaunch(step, Q->stream), "launch");
        cudaEventRecord(to, Q->stream);
        check(cudaStreamSynchronize(Q->stream), "run");
        cudaEventElapsedTime(&one, from, to);
        if (r >= 0) ms.push_back(one);
    }
    cudaGraphExecDestroy(step);
    cudaGraphDestroy(graph);
    return median_of(ms) * 1e3 / SETS;
}

static void nothing(void)
{
}

/* Median microseconds of a product of the experts. */
static double experts_time(const std::function<void(int)> &call)
{
    cudaEvent_t from, to;
    std::vector<float> ms;
    exf_err err;
    cudaEventCreate(&from);
    cudaEventCreate(&to);
    for (int r = -3; r < REPEATS; r++) {
        float one;
        cudaEventRecord(from, Q->stream);
        call((r + 3) % SETS);
        cudaEventRecord(to, Q->stream);
        if (B->finish(Q, &err) != EXF_OK) {
            printf("experts: %s\n", err.msg);
            exit(9);
        }
        cudaEventElapsedTime(&one, from, to);
        if (r >= 0) ms.push_back(one);
    }
    return median_of(ms) * 1e3;
}

/* ---- folds ------------------------------------------------------------------------------------ */

/* Where the folds write: ids and weights, as wide as T * K a set, and the numbers kept. */
struct output {
    int *ids, *kept;
    float *weights;
};

static exf_fold_budget_options budget_of(float penalty)
{
    exf_fold_budget_options o = {};
    o.penalty = penalty;
    return o;
}

static void fold_by_budget(const layer &l, const output &out, int set, const exf_fold_budget_options &o)
{
    exf_fold_routes in = routes_of(l.ids_device, l.weights, set, T, K), to = routes_of(out.ids, out.weights, set, T, K);
    must(exf_fold_prefill_budget_cuda(&in, &to, out.kept + (size_t)set * T, &l.t, &o, Q->stream), "budget");
}

static void fold_jointly(const layer &l, const output &out, int set)
{
    exf_fold_prefill_options o = {};
    exf_fold_routes in = routes_of(l.ids_device, l.weights, set, T, K), to = routes_of(out.ids, out.weights, set, T, P);
    must(exf_fold_prefill_joint_cuda(&in, &to, &l.t, &o, Q->stream), "joint");
}

static double mean_kept(const layer &l, const output &out, float penalty)
{
    std::vector<int> kept(T);
    double sum = 0;
    fold_by_budget(l, out, 0, budget_of(penalty));
    check(cudaStreamSynchronize(Q->stream), "fold");
    check(cudaMemcpy(kept.data(), out.kept, T * sizeof(int), cudaMemcpyDeviceToHost), "copy");
    for (int k : kept) sum += k;
    return sum / T;
}

/* The penalty at which P routes are kept in the mean. */
static float bisect(const layer &l, const output &out)
{
    double low = 1e-9, high = 1;
    for (int i = 0; i < 40; i++) {
        double middle = sqrt(low * high);
        (mean_kept(l, out, (float)middle) > P ? low : high) = middle;
    }
    return (float)high;
}

static void decode_folds(const layer &l)
{
    exf_fold_decode_options joint = {};
    exf_fold_stand_in_options o = {};
    exf_fold_scores s = {};
    joint.pool = o.pool = l.e / 2;
    joint.importance = o.importance = EXF_FOLD_IMPORTANCE_ENERGY;
    s.choice = l.scores;
    auto restore = [&l] {
        size_t bytes = (size_t)SETS * T * K * 4;
        cudaMemcpyAsync(l.in_place, l.ids_device, bytes, cudaMemcpyDeviceToDevice, Q->stream);
        cudaMemcpyAsync(l.weights_in_place, l.weights, bytes, cudaMemcpyDeviceToDevice, Q->stream);
    };
    auto io = [&l](int set) { return routes_of(l.in_place, l.weights_in_place, set, BATCH, K); };
    double by_likeness = graph_time(
        [&](int i) {
            exf_fold_routes r = io(i);
            must(exf_fold_decode_joint_cuda(&r, &l.t, &joint, Q->stream), "decode");
        },
        restore);
    double by_router = graph_time(
        [&](int i) {
            exf_fold_routes r = io(i);
            must(exf_fold_decode_stand_ins_cuda(&r, &s, nullptr, &l.t, &o, Q->stream), "stand-ins");
        },
        restore);
    printf("decode [%d, %d], E %d, D %d: joint %.2f us, stand-ins by the router %.2f us (x %.2f)\n", BATCH, K, l.e, o.pool,
           by_likeness, by_router, by_router / by_likeness);
}

/* ---- the experts that follow ---------------------------------------------------------------------- */

static __global__ void fill(uint16_t *x, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] = (uint16_t)(0x3c00 | ((i * 2654435761u >> 7) & 0x807f)); /* about 1e-2, of both signs */
}

static exf_matrix halves(size_t n)
{
    uint16_t *x = (uint16_t *)room(n * 2);
    fill<<<1024, 256>>>(x, n);
    check(cudaDeviceSynchronize(), "fill");
    return exf_bf16(x);
}

static void run_experts(const layer &l, const output &out, float penalty, int h, int i)
{
    exf_expert_matrices m = {halves((size_t)l.e * h * i), halves((size_t)l.e * h * i), halves((size_t)l.e * h * i)};
    exf_matrix x = halves((size_t)T * h), y = halves((size_t)T * K * h);
    exf_expert_shape s = {};
    s.n_tokens = T;
    s.n_experts = l.e;
    s.top_k = K;
    s.d_model = h;
    s.d_expert = i;
    void *space = room(B->experts_workspace(&s, EXF_NUMBER_BF16));
    auto time = [&](const int *ids, int width) {
        s.top_k = width;
        return experts_time([&](int set) { B->experts(Q, y, x, ids + (size_t)set * T * K, &m, &s, space); });
    };
    double all = time(l.ids_device, K), fixed, budget;
    for (int set = 0; set < SETS; set++) fold_jointly(l, out, set);
    fixed = time(out.ids, P);
    for (int set = 0; set < SETS; set++) fold_by_budget(l, out, set, budget_of(penalty));
    budget = time(out.ids, K);
    printf("experts [%d], E %d, %d x %d, bf16: all %d routes %.0f us, fixed P %d %.0f us, budget of mean %d %.0f us: saves %.0f us "
           "(%.1f %%)\n",
           T, l.e, h, i, K, all, P, fixed, P, budget, all - budget, 100 * (1 - budget / all));
    for (const void *p : {m.gate.p, m.up.p, m.down.p, x.p, y.p, (const void *)space}) cudaFree((void *)p);
}

static void report(int e, int h, int i)
{
    layer l = random_layer(e);
    size_t slots = (size_t)SETS * T * K;
    output out = {(int *)room(slots * 4), (int *)room((size_t)SETS * T * 4), (float *)room(slots * 4)};
    float penalty = bisect(l, out);
    exf_fold_budget_options top_p = {};
    top_p.rule = EXF_FOLD_BUDGET_TOP_P;
    top_p.share = 0.7f;
    double joint = graph_time([&](int set) { fold_jointly(l, out, set); }, nothing);
    double token = graph_time([&](int set) { fold_by_budget(l, out, set, budget_of(penalty)); }, nothing);
    double share = graph_time([&](int set) { fold_by_budget(l, out, set, top_p); }, nothing);
    printf("prefill [%d, %d], E %d: joint to %d %.2f us; budget of mean %.3f %.2f us (x %.2f), top-p %.2f us (x %.2f)\n", T, K, e,
           P, joint, mean_kept(l, out, penalty), token, token / joint, share, share / joint);
    decode_folds(l);
    run_experts(l, out, penalty, h, i);
}

int main(void)
{
    exf_err err;
    B = exf_backend_cuda(&err);
    if (!B || B->open(&Q, EXF_COMPUTE_BF16, &err) != EXF_OK) {
        printf("%s\n", err.msg);
        return 9;
    }
    printf("%s, medians of %d\n", B->device(), REPEATS);
    report(128, 2048, 768); /* Qwen3-30B-A3B */
    report(256, 2048, 512); /* Qwen3.5-35B-A3B */
    return 0;
}
