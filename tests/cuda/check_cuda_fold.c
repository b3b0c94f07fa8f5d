/* check_cuda_fold.c - exfold/fold.h on the device: the CPU's ids and weights, bit for bit,
 * at shapes made from the kernels' constants, over random and adversarial routes and tables, with padding
 * and without, by mean norms and by norms of each route, also out of a captured graph and from two streams
 * at once. */
#include "base/mem.h"
#include "tests/support/pairwise.h"
#include "tests/support/fold_scores_fixtures.h" /* after it: the device's arrays are called d */

#if EXF_HAVE_CUDA
#include <cuda_runtime_api.h>

#define ck_cuda(call)                                                              \
    do {                                                                           \
        cudaError_t e_ = (call);                                                   \
        ck_assert_msg(e_ == cudaSuccess, "%s: %s", #call, cudaGetErrorString(e_)); \
    } while (0)

static fold_tables tables;
static fold_routes in, want, got;
static fold_scores scores;
static uint8_t mask[FOLD_SLOTS];
static int32_t real_rows;
static float norms[FOLD_SLOTS];

/* ---- the device's side -------------------------------------------------------------------- */

/* Room for routes, guarded on both sides.  Where `late` is 1 arrays start a slot late, so that
 * they are aligned to no more than their type. */
enum { GUARD = 256, SLOT_BYTES = 8, ROOM = FOLD_SLOTS * SLOT_BYTES + SLOT_BYTES + 2 * GUARD };
static size_t late;
typedef struct {
    char *ids, *weights;
} device_room;

static struct {
    float *coeff, *loss, *cosine, *norms, *rms, *scale, *own; /* own: norms of each route */
    int32_t *target, *kept, *count;
    uint8_t *mask;
    char *choice, *gate;
    device_room in, out, other;
    cudaStream_t stream[2];
} d;

static void *on_device(size_t bytes)
{
    void *p = NULL;
    ck_cuda(cudaMalloc(&p, bytes));
    return p;
}

static void open_device(void)
{
    size_t matrix = sizeof tables.coeff, vector = sizeof tables.norms;
    float **floats[] = {&d.coeff, &d.loss, &d.cosine, &d.norms, &d.rms, &d.scale};
    for (int i = 0; i < 6; i++) *floats[i] = on_device(i < 3 ? matrix : vector);
    d.target = on_device(FOLD_E * sizeof *d.target);
    d.kept = on_device(FOLD_SLOTS * sizeof *d.kept);
    d.count = on_device(sizeof real_rows);
    d.mask = on_device(sizeof mask);
    d.own = on_device(sizeof norms);
    d.choice = on_device(sizeof scores.choice);
    d.gate = on_device(sizeof scores.gate);
    char **rooms[] = {&d.in.ids, &d.in.weights, &d.out.ids, &d.out.weights, &d.other.ids, &d.other.weights};
    for (int i = 0; i < 6; i++) *rooms[i] = on_device(ROOM);
    for (int i = 0; i < 2; i++) ck_cuda(cudaStreamCreateWithFlags(&d.stream[i], cudaStreamNonBlocking));
}

static void close_device(void)
{
    void *all[] = {d.coeff,  d.loss,       d.cosine,  d.norms,       d.rms,       d.scale,        d.target, d.kept,
                   d.choice, d.gate,       d.count,   d.mask,      d.own,
                   d.in.ids, d.in.weights, d.out.ids, d.out.weights, d.other.ids, d.other.weights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) ck_cuda(cudaFree(all[i]));
    for (int i = 0; i < 2; i++) ck_cuda(cudaStreamDestroy(d.stream[i]));
}

static exf_fold_tables send_tables(void)
{
    size_t e = (size_t)tables.t.n_experts;
    ck_cuda(cudaMemcpy(d.coeff, tables.coeff, e * e * 4, cudaMemcpyHostToDevice));
    ck_cuda(cudaMemcpy(d.loss, tables.loss, e * e * 4, cudaMemcpyHostToDevice));
    ck_cuda(cudaMemcpy(d.cosine, tables.cosine, e * e * 4, cudaMemcpyHostToDevice));
    ck_cuda(cudaMemcpy(d.norms, tables.norms, e * 4, cudaMemcpyHostToDevice));
    ck_cuda(cudaMemcpy(d.rms, tables.rms, e * 4, cudaMemcpyHostToDevice));
    return (exf_fold_tables){.coeff = d.coeff,
                             .loss = d.loss,
                             .norms = d.norms,
                             .cosine = d.cosine,
                             .rms = d.rms,
                             .n_experts = tables.t.n_experts};
}

static size_t id_size(const exf_fold_routes *r)
{
    return r->id_type == EXF_FOLD_I32 ? 4 : 8;
}

static size_t weight_size(const exf_fold_routes *r)
{
    return r->weight_type == EXF_FOLD_F32 ? 4 : 2;
}

/* Bytes of a room that a test looks at: an array a slot late, and what surrounds it. */
static size_t guarded(size_t bytes)
{
    return bytes + SLOT_BYTES + 2 * GUARD;
}

/* The same routes in a room of the device, whose other bytes are all 0x5a. */
static exf_fold_routes send_routes(const device_room *room, const exf_fold_routes *r)
{
    exf_fold_routes on_device = *r;
    ck_cuda(cudaMemset(room->ids, 0x5a, guarded(fold_id_bytes(r))));
    ck_cuda(cudaMemset(room->weights, 0x5a, guarded(fold_weight_bytes(r))));
    on_device.ids = room->ids + GUARD + late * id_size(r);
    on_device.weights = room->weights + GUARD + late * weight_size(r);
    ck_cuda(cudaMemcpy(on_device.ids, r->ids, fold_id_bytes(r), cudaMemcpyHostToDevice));
    ck_cuda(cudaMemcpy(on_device.weights, r->weights, fold_weight_bytes(r), cudaMemcpyHostToDevice));
    on_device.count = r->count ? d.count : NULL;
    on_device.mask = r->mask ? d.mask : NULL;
    on_device.norms = r->norms ? d.own : NULL;
    if (r->norms)
        ck_cuda(cudaMemcpy(d.own, r->norms, (size_t)r->rows * (size_t)r->width * sizeof *r->norms, cudaMemcpyHostToDevice));
    if (r->count) ck_cuda(cudaMemcpy(d.count, r->count, sizeof *r->count, cudaMemcpyHostToDevice));
    if (r->mask) ck_cuda(cudaMemcpy(d.mask, r->mask, (size_t)r->rows, cudaMemcpyHostToDevice));
    ck_cuda(cudaDeviceSynchronize()); /* a copy from pageable memory may return before it has arrived */
    return on_device;
}

/* Copies [start, start + bytes) of a guarded array to the host; all around it must be as it was. */
static void fetch_array(void *to, const char *array, const void *start, size_t bytes)
{
    static unsigned char all[ROOM];
    size_t first = (size_t)((const char *)start - array), wrong = 0;
    ck_cuda(cudaMemcpy(all, array, guarded(bytes), cudaMemcpyDeviceToHost));
    memcpy(to, all + first, bytes);
    for (size_t i = 0; i < first; i++) wrong += all[i] != 0x5a;
    for (size_t i = first + bytes; i < guarded(bytes); i++) wrong += all[i] != 0x5a;
    ck_assert_msg(wrong == 0, "%zu bytes around [%zu, %zu) were written", wrong, first, first + bytes);
}

/* A copy of the routes in `want`, with the same padding. */
static exf_fold_routes copy_routes(const exf_fold_routes *r)
{
    exf_fold_routes copy = fold_copy(&want, r);
    copy.count = r->count;
    copy.mask = r->mask;
    copy.norms = r->norms;
    return copy;
}

/* Gives every other variant norms of each route: powers of two where sums are exact. */
static void give_norms(exf_fold_routes *r, int v, uint64_t seed, int exact)
{
    for (int i = 0; i < r->rows * r->width; i++) {
        double u = fold_uniform(seed, 83, (uint64_t)i);
        norms[i] = exact ? (float)(1 << (int)(3 * u)) : (float)exp(2 * u - 1);
    }
    r->norms = (v + v / 6) % 2 ? norms : NULL;
}

/* Makes padding of some of the rows: v / 4 % 4 is 1 those beyond a count, 2 some of them, 3 both; 0 none. */
static void pad(exf_fold_routes *r, int v, uint64_t seed)
{
    int32_t counts[] = {r->rows / 2, 0, -7, r->rows + 9, 1, r->rows - 1};
    real_rows = counts[fold_below(6, seed, 81, 0)];
    for (int row = 0; row < r->rows; row++) mask[row] = fold_uniform(seed, 82, (uint64_t)row) < 0.7 ? (uint8_t)(1 + row % 255) : 0;
    if (v / 4 % 2) r->count = &real_rows;
    if (v / 8 % 2) r->mask = mask;
}

static exf_fold_routes fetch_routes(const device_room *room, const exf_fold_routes *on_device)
{
    exf_fold_routes r = fold_room(&got, on_device->rows, on_device->width, on_device->id_type, on_device->weight_type);
    fetch_array(got.ids, room->ids, on_device->ids, fold_id_bytes(&r));
    fetch_array(got.weights, room->weights, on_device->weights, fold_weight_bytes(&r));
    return r;
}

/* ---- comparison ------------------------------------------------------------------------------- */

static int same_slot(const exf_fold_routes *a, const exf_fold_routes *b, int i, int ids_only)
{
    float x = fold_weight_at(a, i), y = fold_weight_at(b, i);
    return fold_id_at(a, i) == fold_id_at(b, i) && (ids_only || (x != x && y != y) || !memcmp(&x, &y, sizeof x));
}

/* Equal bits, but for the payload of a NaN; `ids_only` where the header promises no more. */
static void ck_same(const exf_fold_routes *a, const exf_fold_routes *b, int ids_only, const char *what)
{
    int n = a->rows * a->width, i = 0;
    while (i < n && same_slot(a, b, i, ids_only)) i++;
    if (i < n)
        ck_abort_msg("%s: E %d, [%d, %d], types %d %d, slot %d: %lld %a, the CPU has %lld %a", what, tables.t.n_experts, a->rows,
                     a->width, a->id_type, a->weight_type, i, (long long)fold_id_at(a, i), (double)fold_weight_at(a, i),
                     (long long)fold_id_at(b, i), (double)fold_weight_at(b, i));
}

/* KEEP: P, and the width of a budget's output.  POOL 0: one expert, 1: half of them, 2: all but one, 3: all.  TYPES: ids of 64
 * bits where it is odd, and a third of it the type of weights. */
enum { EXPERTS, TOP_K, ROWS, KEEP, POOL, TYPES, DIMENSIONS };
static const dimension dimensions[] = {{"experts", 3, 512}, {"top-k", 1, 16}, {"rows", 1, 2049},
                                       {"kept", 1, 16},     {"pool", 0, 3},   {"types", 0, 5}};

static const boundary boundaries[] = {
    {"fold/fold_pool.cuh", "EXF_FOLD_WARPS", EXPERTS, 16 * 2}, /* two rows of a table each, in one block */
    {"fold/fold_pool.cuh", "groups * share", EXPERTS, 64}, /* four experts a group, 32 lanes, 16, 8, 4 */
    {"fold/fold_pool.cuh", "groups * share", EXPERTS, 128},
    {"fold/fold_decode_cuda.cu", "t->n_experts > 256", EXPERTS, 256},
    {"fold/fold_joint_cuda.cu", "t->n_experts > 256", EXPERTS, 256},
    {"fold/fold_pool.cuh", "EXF_FOLD_THREADS", EXPERTS, 512},
    {"fold/fold_decode_cuda.cu", "LOADS", EXPERTS, 16 * 32},
    {"fold/fold_stand_ins_cuda.cu", "LOADS", EXPERTS, 16 * 32},
    {"fold/fold_internal.h", "EXF_FOLD_MAX_E", EXPERTS, 512},
    {"fold/fold_internal.h", "EXF_FOLD_MIN_E", EXPERTS, 3},
    {"fold/fold_prefill_cuda.cu", "in->width > 8", TOP_K, 8},
    {"fold/fold_lanes.cuh", "EARLY", TOP_K, 8},
    {"fold/fold_internal.h", "EXF_FOLD_MAX_K", TOP_K, 16},
    {"fold/fold_prefill_cuda.cu", "KEPT", KEEP, 2},
    {"fold/fold_prefill_cuda.cu", "settled.keep <= 4", KEEP, 4},
    {"fold/fold_prefill_cuda.cu", "settled.keep <= 8", KEEP, 8},
    {"fold/fold_prefill_cuda.cu", "GROUPS", KEEP, 8}, /* one group of 8 lanes, two of 16 */
    {"fold/fold_prefill_cuda.cu", "ROUNDS", KEEP, 16},
    {"fold/fold_joint_cuda.cu", "PREFILL_THREADS", ROWS, 128 / 8}, /* of 8 lanes each */
    {"fold/fold_prefill_cuda.cu", "THREADS", ROWS, 256 / 16},
    {"fold/fold_prefill_cuda.cu", "THREADS", ROWS, 256 / 8},
    {"fold/fold_decode_cuda.cu", "STATIC_THREADS", ROWS, 256}, /* of one slot */
    {"fold/fold_stand_ins_cuda.cu", "CLUSTER", ROWS, 8 * 16}, /* a warp of a cluster each */
    {"fold/fold_joint_cuda.cu", "CLUSTER", ROWS, 8 * 512 / 16}, /* 16 lanes of a cluster each */
    {"fold/fold_pool.cuh", "EXF_FOLD_HELD_SLOTS", ROWS, 2048 / 16},
    {"fold/fold_pool.cuh", "EXF_FOLD_HELD_SLOTS", ROWS, 2048 / 8},
    {"fold/fold_pool.cuh", "EXF_FOLD_HELD_SLOTS", ROWS, 2048},
    {"fold/fold_pool.cuh", "EXF_FOLD_HELD", ROWS, 4 * 512}, /* of one slot, a thread's four */
    {"fold/fold_pool.cuh", "n_union <= o.pool", POOL, 1},
    {"fold/fold_joint_cuda.cu", "own >= n_pool", POOL, 2},
    {"fold/fold_cuda.cuh", "kernel<EXF_FOLD_I32, EXF_FOLD_BF16", TYPES, 1},
    {"fold/fold_cuda.cuh", "kernel<EXF_FOLD_I64, EXF_FOLD_BF16", TYPES, 3},
    {"fold/fold_cuda.cuh", "kernel<EXF_FOLD_I64, EXF_FOLD_F16", TYPES, 5},
};

static int is_valid(const shape *s)
{
    return s->at[TOP_K] <= s->at[EXPERTS] && s->at[KEEP] <= s->at[TOP_K];
}

/* Rows of a given pool's stand-ins, of which a warp has two. */
static const dimension many_dimensions[] = {{"experts", 3, 63}, {"top-k", 1, 3}, {"rows", 16383, 16385},
                                            {"kept", 1, 3},     {"pool", 0, 3},  {"types", 0, 5}};
static const boundary many_boundaries[] = {
    {"fold/fold_stand_ins_cuda.cu", "MOST_BLOCKS", ROWS, 1024 * 16},
    {"fold/fold_cuda.cuh", "kernel<EXF_FOLD_I32, EXF_FOLD_BF16", TYPES, 1},
    {"fold/fold_cuda.cuh", "kernel<EXF_FOLD_I64, EXF_FOLD_BF16", TYPES, 4},
};

static pairwise cases, many_cases;

/* keep, pool 0: drawn. */
typedef struct {
    int e, k, rows, keep, pool;
} routes_shape;

/* Tables and weights of odd numbers are tried at these. */
static const routes_shape shapes[] = {{3, 1, 5, 0, 0},      {3, 3, 1, 0, 0},      {5, 2, 129, 0, 0},    {8, 2, 33, 0, 0},
                                      {16, 4, 100, 0, 0},   {33, 7, 31, 0, 0},    {60, 6, 63, 0, 0},    {64, 8, 1, 0, 0},
                                      {128, 8, 256, 0, 0},  {256, 8, 256, 0, 0},  {257, 9, 40, 0, 0},   {384, 8, 77, 0, 0},
                                      {512, 10, 50, 0, 0},  {512, 16, 300, 0, 0}, {128, 8, 1025, 0, 0}, {256, 16, 513, 0, 0}};
/* As many slots as a pool is chosen among (EXF_FOLD_MAX_SLOTS), rows of 8 lanes of a cluster each (512). */
static const routes_shape large[] = {{128, 8, 8192, 0, 0}, {512, 16, 4096, 0, 0},  {3, 1, 65536, 0, 0},   {512, 13, 5000, 0, 0},
                                     {64, 8, 511, 0, 0},   {300, 8, 512, 0, 0},    {64, 8, 513, 0, 0}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_LARGE = sizeof large / sizeof *large };

static void prefill_once(const routes_shape *s, int v, uint64_t seed, const exf_fold_tables *on_device, int ids_only)
{
    exf_fold_prefill_options o = {.keep = s->keep ? s->keep : 1 + fold_below(s->k, seed, 1, 0),
                                  .rank = (exf_fold_rank)(v % 3),
                                  .rescale = (exf_fold_rescale)(v / 3 % 3),
                                  .confidence = v / 9 % 2,
                                  .ridge = v % 4 == 0 ? EXF_FOLD_ZERO : v % 4 == 1 ? 0 : 0.1f};
    o.max_loss = v % 4 == 0 ? 0.5f : v % 8 == 1 ? EXF_FOLD_ZERO : 0;
    int joint = v % 3 == 2 && !ids_only, width = v % 2 ? o.keep : o.keep + fold_below(s->k - o.keep + 1, seed, 2, 0);
    o.size = v % 4 == 2 ? EXF_FOLD_SIZED(exf_fold_prefill_options) : 0;
    o.repeat = v % 4 == 2;
    exf_fold_routes out = fold_room(&want, s->rows, width, in.r.id_type, in.r.weight_type);
    exf_fold_routes from = send_routes(&d.in, &in.r), to = send_routes(&d.out, &out);
    ck_assert_int_eq((joint ? exf_fold_prefill_joint_cpu : exf_fold_prefill_cpu)(&in.r, &out, &tables.t, &o), EXF_FOLD_OK);
    ck_assert_int_eq((joint ? exf_fold_prefill_joint_cuda : exf_fold_prefill_cuda)(&from, &to, on_device, &o, d.stream[0]),
                     EXF_FOLD_OK);
    ck_cuda(cudaStreamSynchronize(d.stream[0]));
    exf_fold_routes is = fetch_routes(&d.out, &to);
    ck_same(&is, &out, ids_only, joint ? "prefill_joint" : "prefill");
    is = fetch_routes(&d.in, &from);
    ck_assert(fold_same(&is, &in.r));
}

static void decode_once(const routes_shape *s, int v, uint64_t seed, const exf_fold_tables *on_device, int ids_only)
{
    exf_fold_decode_options o = {.pool = s->pool ? s->pool : 1 + fold_below(s->e, seed, 1, 0),
                                 .importance = (exf_fold_importance)(v / 5 % 3),
                                 .drop = v % 7 == 0,
                                 .ridge = v % 4 == 0 ? EXF_FOLD_ZERO : v % 4 == 1 ? 0 : 0.1f};
    o.max_loss = v % 4 == 0 ? 0.4f : v % 8 == 1 ? EXF_FOLD_ZERO : 0;
    if (v % 6 == 5 && !s->pool) o.pool = s->e / 2;
    int joint = v % 3 == 2;
    if (!joint) {
        o.fallback = v % 5 == 3;
        o.candidates = (exf_fold_candidates)(v / 2 % 3);
    }
    exf_fold_routes io = copy_routes(&in.r), to = send_routes(&d.in, &in.r);
    ck_assert_int_eq((joint ? exf_fold_decode_joint_cpu : exf_fold_decode_cpu)(&io, &tables.t, &o), EXF_FOLD_OK);
    ck_assert_int_eq((joint ? exf_fold_decode_joint_cuda : exf_fold_decode_cuda)(&to, on_device, &o, d.stream[0]), EXF_FOLD_OK);
    ck_cuda(cudaStreamSynchronize(d.stream[0]));
    exf_fold_routes is = fetch_routes(&d.in, &to);
    ck_same(&is, &io, ids_only, joint ? "decode_joint" : "decode");
}

/* Decode into a pool fixed beforehand, with repetitions and strangers among its members; v % 6 == 5: no expert at all. */
static void members_once(const routes_shape *s, int v, uint64_t seed, const exf_fold_tables *on_device, int ids_only)
{
    static const int32_t strangers[] = {-1, INT32_MIN, 1 << 20};
    int32_t members[FOLD_E];
    exf_fold_decode_options o = EXF_FOLD_DECODE_INIT, there;
    int joint = v % 2;
    o.pool = s->pool ? s->pool : v % 5 == 4 ? s->e : 1 + fold_below(s->e, seed, 31, 0);
    o.max_loss = v % 4 == 0 ? 0.4f : EXF_FOLD_NO_LIMIT;
    o.drop = v % 7 == 6;
    o.fallback = !joint && v % 3 == 2;
    for (int i = 0; i < o.pool; i++) {
        members[i] = fold_below(s->e, seed, 32, (uint64_t)i);
        if (v % 6 == 5 || fold_uniform(seed, 33, (uint64_t)i) < 0.2) members[i] = i % 4 == 3 ? s->e : strangers[i % 4];
    }
    if (v % 3 == 0)
        for (int i = 0; i < o.pool; i++) members[i] = (i + v) % s->e; /* distinct */
    ck_cuda(cudaMemcpy(d.target, members, (size_t)o.pool * sizeof *members, cudaMemcpyHostToDevice));
    there = o;
    o.members = members;
    there.members = d.target;
    exf_fold_routes io = copy_routes(&in.r), to = send_routes(&d.in, &in.r);
    ck_assert_int_eq((joint ? exf_fold_decode_joint_cpu : exf_fold_decode_cpu)(&io, &tables.t, &o), EXF_FOLD_OK);
    ck_assert_int_eq((joint ? exf_fold_decode_joint_cuda : exf_fold_decode_cuda)(&to, on_device, &there, d.stream[0]),
                     EXF_FOLD_OK);
    ck_cuda(cudaStreamSynchronize(d.stream[0]));
    exf_fold_routes is = fetch_routes(&d.in, &to);
    ck_same(&is, &io, ids_only, joint ? "decode_joint of members" : "decode of members");
}

static void static_once(int e)
{
    int32_t target[FOLD_E];
    float scale[FOLD_E];
    for (int i = 0; i < e; i++) {
        target[i] = i % 3 ? i : i / 2;
        scale[i] = i % 3 ? 1 : tables.coeff[i];
    }
    ck_cuda(cudaMemcpy(d.target, target, (size_t)e * 4, cudaMemcpyHostToDevice));
    ck_cuda(cudaMemcpy(d.scale, scale, (size_t)e * 4, cudaMemcpyHostToDevice));
    exf_fold_routes io = copy_routes(&in.r), to = send_routes(&d.in, &in.r);
    ck_assert_int_eq(exf_fold_decode_static_cpu(&io, target, scale, e), EXF_FOLD_OK);
    ck_assert_int_eq(exf_fold_decode_static_cuda(&to, d.target, d.scale, e, d.stream[0]), EXF_FOLD_OK);
    ck_cuda(cudaStreamSynchronize(d.stream[0]));
    exf_fold_routes is = fetch_routes(&d.in, &to);
    ck_same(&is, &io, 0, "decode_static");
}

static void budget_once(const routes_shape *s, int v, uint64_t seed, const exf_fold_tables *on_device, int ids_only)
{
    static int32_t count[FOLD_SLOTS], is_count[FOLD_SLOTS];
    int width = s->keep ? s->keep : 1 + fold_below(s->k, seed, 11, 0);
    exf_fold_budget_options o = {.rule = (exf_fold_budget_rule)(v % 2),
                                 .least = v % 3 ? 0 : 1 + fold_below(width, seed, 12, 0),
                                 .repeat = v / 2 % 2,
                                 .ridge = v % 4 == 0 ? EXF_FOLD_ZERO : v % 4 == 1 ? 0 : 0.1f};
    float u = (float)fold_uniform(seed, 13, 0);
    if (o.rule == EXF_FOLD_BUDGET_TOKEN)
        o.penalty = v % 6 == 0 ? 0 : 0.2f * u * u * u;
    else
        o.share = v % 6 == 1 ? 1 : 0.05f + 0.95f * u;
    exf_fold_routes out = fold_room(&want, s->rows, width, in.r.id_type, in.r.weight_type);
    exf_fold_routes from = send_routes(&d.in, &in.r), to = send_routes(&d.out, &out);
    ck_assert_int_eq(exf_fold_prefill_budget_cpu(&in.r, &out, count, &tables.t, &o), EXF_FOLD_OK);
    ck_assert_int_eq(exf_fold_prefill_budget_cuda(&from, &to, v % 5 ? d.kept : NULL, on_device, &o, d.stream[0]), EXF_FOLD_OK);
    ck_cuda(cudaStreamSynchronize(d.stream[0]));
    exf_fold_routes is = fetch_routes(&d.out, &to);
    ck_same(&is, &out, ids_only, o.rule == EXF_FOLD_BUDGET_TOKEN ? "prefill_budget" : "prefill_budget, top-p");
    if (v % 5 == 0) return;
    ck_cuda(cudaMemcpy(is_count, d.kept, (size_t)s->rows * sizeof *is_count, cudaMemcpyDeviceToHost));
    for (int i = 0; i < s->rows; i++) ck_assert_int_eq(is_count[i], count[i]);
}

static void stand_ins_once(const routes_shape *s, int v, uint64_t seed, const exf_fold_tables *on_device, int ids_only)
{
    int32_t members[FOLD_E];
    int drawn = v % 6 == 4 ? 1 + fold_below(s->k, seed, 21, 0) : 1 + fold_below(s->e, seed, 22, 0);
    exf_fold_stand_in_options o = {.pool = s->pool ? s->pool : drawn,
                                   .importance = (exf_fold_importance)(v / 5 % 2),
                                   .weights = (exf_fold_stand_in_weights)(v % 3),
                                   .ridge = v % 4 == 0 ? EXF_FOLD_ZERO : v % 4 == 1 ? 0 : 0.1f};
    int given = v / 2 % 2;
    if ((int64_t)s->rows * s->e > FOLD_SCORES) return;
    fold_fill_scores(&scores, s->rows, s->e, fold_real_of(v / 3), seed, (fold_scores_kind)(v % N_SCORES), v / 2 % 2);
    for (int i = 0; i < o.pool; i++) members[i] = (i * 7 + v) % s->e; /* some twice where 7 divides E */
    size_t bytes = fold_score_bytes(&scores.s, s->rows, s->e);
    ck_cuda(cudaMemcpy(d.choice, scores.choice, bytes, cudaMemcpyHostToDevice));
    ck_cuda(cudaMemcpy(d.gate, scores.gate, bytes, cudaMemcpyHostToDevice));
    ck_cuda(cudaMemcpy(d.target, members, (size_t)o.pool * sizeof *members, cudaMemcpyHostToDevice));
    exf_fold_scores there = {.choice = d.choice, .gate = scores.s.gate ? d.gate : NULL, .type = scores.s.type};
    exf_fold_routes io = copy_routes(&in.r), to = send_routes(&d.in, &in.r);
    ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&io, &scores.s, given ? members : NULL, &tables.t, &o), EXF_FOLD_OK);
    ck_assert_int_eq(exf_fold_decode_stand_ins_cuda(&to, &there, given ? d.target : NULL, on_device, &o, d.stream[0]), EXF_FOLD_OK);
    ck_cuda(cudaStreamSynchronize(d.stream[0]));
    exf_fold_routes is = fetch_routes(&d.in, &to);
    ck_same(&is, &io, ids_only, given ? "stand-ins of a given pool" : "stand-ins");
}

/* One call of every form with variant v of the options; the tables are on the device. */
static void one_of_every_form(const routes_shape *s, fold_tables_kind kind, int v, uint64_t seed, const exf_fold_tables *on_device)
{
    exf_fold_routes r = fold_room(&in, s->rows, s->k, fold_int_of(v), fold_real_of(v / 2));
    late = (size_t)(v / 6 % 2);
    fold_fill_routes(&r, s->e, seed, kind == TABLES_EXACT ? ROUTES_EXACT : (fold_routes_kind)(v / 3 % N_ROUTES));
    pad(&in.r, v, seed);
    give_norms(&in.r, v, seed, kind == TABLES_EXACT);
    prefill_once(s, v, seed, on_device, 0);
    decode_once(s, v, seed, on_device, 0);
    members_once(s, v, seed, on_device, 0);
    budget_once(s, v, seed, on_device, 0);
    stand_ins_once(s, v, seed, on_device, 0);
    if (v % 4 == 0) static_once(s->e);
}

static void every_form(const routes_shape *s, fold_tables_kind kind, int variants, uint64_t seed)
{
    fold_fill_tables(&tables, s->e, seed, kind);
    exf_fold_tables on_device = send_tables();
    for (int v = 0; v < variants; v++) one_of_every_form(s, kind, v, seed * 100 + (uint64_t)v, &on_device);
}

/* Three variants of six with the shape's types, so that all of them come in turn. */
START_TEST(every_form_equals_the_cpu)
{
    const shape *s = &cases.shapes[_i];
    int e = s->at[EXPERTS], pools[] = {1, e / 2, e - 1, e};
    const routes_shape r = {e, s->at[TOP_K], s->at[ROWS], s->at[KEEP], pools[s->at[POOL]]};
    fold_tables_kind kind = (fold_tables_kind)(_i % N_TABLES);
    fold_fill_tables(&tables, e, 300 + (uint64_t)_i, kind);
    exf_fold_tables on_device = send_tables();
    for (int i = 0; i < 3; i++)
        one_of_every_form(&r, kind, s->at[TYPES] + 6 * ((_i / N_TABLES + 2 * i) % 6), 30000 + 10 * (uint64_t)_i + (uint64_t)i,
                          &on_device);
}
END_TEST

/* By variants in which stand_ins_once() gives the members. */
START_TEST(many_rows_equal_the_cpu)
{
    const shape *s = &many_cases.shapes[_i];
    int e = s->at[EXPERTS], types = s->at[TYPES], pools[] = {1, e / 2, e - 1, e};
    const routes_shape r = {e, s->at[TOP_K], s->at[ROWS], s->at[KEEP], pools[s->at[POOL]]};
    fold_fill_tables(&tables, e, 350 + (uint64_t)_i, TABLES_REAL);
    exf_fold_tables on_device = send_tables();
    one_of_every_form(&r, TABLES_REAL, types / 2 == 1 ? types : types + 6, 35000 + (uint64_t)_i, &on_device);
}
END_TEST

START_TEST(large_batches_equal_the_cpu)
{
    every_form(&large[_i], TABLES_REAL, 4, 400 + (uint64_t)_i); /* two of stand-ins with given members */
    every_form(&large[_i], TABLES_EXACT, 2, 500 + (uint64_t)_i);
}
END_TEST

/* NaN, infinities, huge and tiny numbers, both zeros, in weights and tables. */
static const float odd[] = {NAN, INFINITY, -INFINITY, -0.0f, 0, 3e38f, -3e38f, 1e-45f, 1e30f, 9.9e29f, -1};

START_TEST(odd_numbers_choose_the_same_experts)
{
    const routes_shape *s = &shapes[_i];
    fold_fill_tables(&tables, s->e, 7, TABLES_REAL);
    for (int i = 0; i < s->e * s->e; i += 1 + fold_below(9, 71, 0, (uint64_t)i)) {
        tables.loss[i] = odd[fold_below(11, 72, 0, (uint64_t)i)];
        tables.cosine[i] = odd[fold_below(11, 73, 0, (uint64_t)i)];
        tables.norms[i % s->e] = tables.rms[i % s->e] = i % 5 ? tables.norms[i % s->e] : odd[fold_below(11, 74, 0, (uint64_t)i)];
    }
    exf_fold_tables on_device = send_tables();
    for (int v = 0; v < 18; v++) {
        exf_fold_routes r = fold_room(&in, s->rows, s->k, fold_int_of(v), EXF_FOLD_F32);
        fold_fill_routes(&r, s->e, 600 + (uint64_t)v, ROUTES_AWKWARD);
        for (int i = 0; i < s->rows * s->k; i += 1 + fold_below(5, 75, (uint64_t)v, (uint64_t)i))
            ((float *)r.weights)[i] = odd[fold_below(11, 76, (uint64_t)v, (uint64_t)i)];
        prefill_once(s, v, 700 + (uint64_t)v, &on_device, 1);
        decode_once(s, v, 700 + (uint64_t)v, &on_device, 1);
        members_once(s, v, 700 + (uint64_t)v, &on_device, 1);
        budget_once(s, v, 700 + (uint64_t)v, &on_device, 1);
        stand_ins_once(s, v, 700 + (uint64_t)v, &on_device, 1);
    }
}
END_TEST

/* ---- graphs and streams -------------------------------------------------------------------------- */

/* Keeps 4 of 8 routes, or as many as a budget says; padding stays.  WIDE: in 8 slots. */
enum { WIDE = 2, BY_BUDGET = 4, PREFILLS_OF_PADDED = 5 };
static exf_fold_status prefill_padded(int form, int here, const exf_fold_routes *r, const exf_fold_routes *out,
                                      const exf_fold_tables *t)
{
    exf_fold_prefill_options p = EXF_FOLD_PREFILL_INIT;
    exf_fold_budget_options b = EXF_FOLD_BUDGET_INIT;
    p.keep = 4;
    p.repeat = form == WIDE;
    b.penalty = 0.02f;
    b.padding = 1;
    if (form == BY_BUDGET)
        return here ? exf_fold_prefill_budget_cpu(r, out, NULL, t, &b)
                    : exf_fold_prefill_budget_cuda(r, out, NULL, t, &b, d.stream[0]);
    if (here) return (form % 2 ? exf_fold_prefill_joint_cpu : exf_fold_prefill_cpu)(r, out, t, &p);
    return (form % 2 ? exf_fold_prefill_joint_cuda : exf_fold_prefill_cuda)(r, out, t, &p, d.stream[0]);
}

/* A graph of a padded batch, whose count and mask the device reads anew at every replay: decode in place, then prefill of it.
 * _i: a form of prefill. */
START_TEST(a_captured_count_can_change)
{
    const exf_fold_decode_options o = {.pool = 24};
    const int width = _i < WIDE ? 4 : 8, joint = _i % 2;
    fold_fill_tables(&tables, 128, 8, TABLES_REAL);
    exf_fold_tables on_device = send_tables();
    exf_fold_routes r = fold_room(&in, 256, 8, EXF_FOLD_I32, EXF_FOLD_BF16);
    fold_fill_routes(&r, 128, 899, ROUTES_PLAIN);
    r.count = &real_rows;
    r.mask = mask;
    exf_fold_routes io = send_routes(&d.in, &r), to = r;
    to.width = width;
    to = send_routes(&d.out, &to);
    cudaGraph_t graph;
    cudaGraphExec_t step;
    ck_cuda(cudaStreamBeginCapture(d.stream[0], cudaStreamCaptureModeGlobal));
    ck_assert_int_eq((joint ? exf_fold_decode_joint_cuda : exf_fold_decode_cuda)(&io, &on_device, &o, d.stream[0]), EXF_FOLD_OK);
    ck_assert_int_eq(prefill_padded(_i, 0, &io, &to, &on_device), EXF_FOLD_OK);
    ck_cuda(cudaStreamEndCapture(d.stream[0], &graph));
    ck_cuda(cudaGraphInstantiateWithFlags(&step, graph, 0));
    for (int replay = 0; replay < 6; replay++) {
        fold_fill_routes(&r, 128, 900 + (uint64_t)replay, ROUTES_PLAIN);
        real_rows = (int32_t[]){256, 17, 0, 200, 1, 255}[replay];
        for (int row = 0; row < 256; row++) mask[row] = replay < 3 || (row + replay) % 5;
        ck_cuda(cudaMemcpy(io.ids, r.ids, fold_id_bytes(&r), cudaMemcpyHostToDevice));
        ck_cuda(cudaMemcpy(io.weights, r.weights, fold_weight_bytes(&r), cudaMemcpyHostToDevice));
        ck_cuda(cudaMemcpy(d.count, &real_rows, sizeof real_rows, cudaMemcpyHostToDevice));
        ck_cuda(cudaMemcpy(d.mask, mask, 256, cudaMemcpyHostToDevice));
        ck_cuda(cudaGraphLaunch(step, d.stream[0]));
        ck_cuda(cudaStreamSynchronize(d.stream[0]));
        ck_assert_int_eq((joint ? exf_fold_decode_joint_cpu : exf_fold_decode_cpu)(&r, &tables.t, &o), EXF_FOLD_OK);
        exf_fold_routes is = fetch_routes(&d.in, &io);
        ck_same(&is, &r, 0, "captured decode of a padded batch");
        exf_fold_routes kept = fold_room(&want, 256, width, EXF_FOLD_I32, EXF_FOLD_BF16);
        ck_assert_int_eq(prefill_padded(_i, 1, &r, &kept, &tables.t), EXF_FOLD_OK);
        is = fetch_routes(&d.out, &to);
        ck_same(&is, &kept, 0, "captured prefill of a padded batch");
    }
    ck_cuda(cudaGraphExecDestroy(step));
    ck_cuda(cudaGraphDestroy(graph));
}
END_TEST

/* The forms that choose for each token, captured and replayed: prefill in -> out, then stand-ins in `in`. */
START_TEST(captured_choices_can_be_replayed)
{
    const exf_fold_budget_options p = {.penalty = 0.01f};
    const exf_fold_stand_in_options o = {.pool = 48};
    fold_fill_tables(&tables, 128, 8, TABLES_REAL);
    fold_fill_scores(&scores, 256, 128, EXF_FOLD_F32, 3, SCORES_PLAIN, 0);
    exf_fold_tables on_device = send_tables();
    exf_fold_routes r = fold_room(&in, 256, 8, EXF_FOLD_I32, EXF_FOLD_F32), io = send_routes(&d.in, &r);
    exf_fold_routes to = send_routes(&d.out, &r);
    exf_fold_scores there = {.choice = d.choice};
    cudaGraph_t graph;
    cudaGraphExec_t step;
    ck_cuda(cudaMemcpy(d.choice, scores.choice, fold_score_bytes(&scores.s, 256, 128), cudaMemcpyHostToDevice));
    ck_cuda(cudaStreamBeginCapture(d.stream[0], cudaStreamCaptureModeGlobal));
    ck_assert_int_eq(exf_fold_prefill_budget_cuda(&io, &to, d.kept, &on_device, &p, d.stream[0]), EXF_FOLD_OK);
    ck_assert_int_eq(exf_fold_decode_stand_ins_cuda(&io, &there, NULL, &on_device, &o, d.stream[0]), EXF_FOLD_OK);
    ck_cuda(cudaStreamEndCapture(d.stream[0], &graph));
    ck_cuda(cudaGraphInstantiateWithFlags(&step, graph, 0));
    for (uint64_t replay = 0; replay < 5; replay++) {
        fold_fill_routes(&r, 128, 900 + replay, ROUTES_PLAIN);
        ck_cuda(cudaMemcpy(io.ids, r.ids, fold_id_bytes(&r), cudaMemcpyHostToDevice));
        ck_cuda(cudaMemcpy(io.weights, r.weights, fold_weight_bytes(&r), cudaMemcpyHostToDevice));
        ck_cuda(cudaGraphLaunch(step, d.stream[0]));
        ck_cuda(cudaStreamSynchronize(d.stream[0]));
        exf_fold_routes kept = fold_room(&want, 256, 8, EXF_FOLD_I32, EXF_FOLD_F32);
        ck_assert_int_eq(exf_fold_prefill_budget_cpu(&r, &kept, NULL, &tables.t, &p), EXF_FOLD_OK);
        exf_fold_routes is = fetch_routes(&d.out, &to);
        ck_same(&is, &kept, 0, "captured budget");
        ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&r, &scores.s, NULL, &tables.t, &o), EXF_FOLD_OK);
        is = fetch_routes(&d.in, &io);
        ck_same(&is, &r, 0, "captured stand-ins");
    }
    ck_cuda(cudaGraphExecDestroy(step));
    ck_cuda(cudaGraphDestroy(graph));
}
END_TEST

START_TEST(streams_do_not_disturb_one_another)
{
    const exf_fold_decode_options o[2] = {{.pool = 100, .max_loss = EXF_FOLD_NEVER, .ridge = 0.01f},
                                          {.pool = 17, .max_loss = 0.5f, .ridge = 0.1f}};
    fold_fill_tables(&tables, 256, 9, TABLES_REAL);
    exf_fold_tables on_device = send_tables();
    exf_fold_routes a = fold_room(&in, 256, 8, EXF_FOLD_I32, EXF_FOLD_F32),
                    b = fold_room(&want, 700, 8, EXF_FOLD_I64, EXF_FOLD_BF16);
    fold_fill_routes(&a, 256, 1, ROUTES_PLAIN);
    fold_fill_routes(&b, 256, 2, ROUTES_AWKWARD);
    exf_fold_routes x = send_routes(&d.in, &a), y = send_routes(&d.out, &b);
    ck_assert_int_eq(exf_fold_decode_cuda(&x, &on_device, &o[0], d.stream[0]), EXF_FOLD_OK);
    ck_assert_int_eq(exf_fold_decode_joint_cuda(&y, &on_device, &o[1], d.stream[1]), EXF_FOLD_OK);
    ck_cuda(cudaDeviceSynchronize());
    ck_assert_int_eq(exf_fold_decode_cpu(&a, &tables.t, &o[0]), EXF_FOLD_OK);
    ck_assert_int_eq(exf_fold_decode_joint_cpu(&b, &tables.t, &o[1]), EXF_FOLD_OK);
    exf_fold_routes is = fetch_routes(&d.in, &x);
    ck_same(&is, &a, 0, "first stream");
    is = fetch_routes(&d.out, &y);
    ck_same(&is, &b, 0, "second stream");
}
END_TEST

START_TEST(bad_arguments_are_refused_before_the_device)
{
    exf_fold_prefill_options p = {.keep = 2, .max_loss = EXF_FOLD_NEVER};
    exf_fold_decode_options o = {.pool = 4, .max_loss = EXF_FOLD_NEVER};
    fold_fill_tables(&tables, 16, 1, TABLES_REAL);
    exf_fold_tables on_device = send_tables();
    exf_fold_routes r = fold_room(&in, 8, 4, EXF_FOLD_I32, EXF_FOLD_F32), io = send_routes(&d.in, &r),
                    none = {.width = 4};
    exf_fold_routes no_out = none;
    no_out.width = 2;
    ck_assert_int_eq(exf_fold_prefill_cuda(&io, &io, &on_device, &p, NULL), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_prefill_joint_cuda(&io, NULL, &on_device, &p, NULL), EXF_FOLD_BAD_ARGUMENT);
    p.reserved[0] = o.reserved[0] = 1;
    ck_assert_int_eq(exf_fold_prefill_cuda(&none, &no_out, &on_device, &p, NULL), EXF_FOLD_UNSUPPORTED);
    ck_assert_int_eq(exf_fold_decode_cuda(&none, &on_device, &o, NULL), EXF_FOLD_UNSUPPORTED);
    p.reserved[0] = o.reserved[0] = 0;
    ck_assert_int_eq(exf_fold_prefill_cuda(&none, &no_out, &on_device, &p, NULL), EXF_FOLD_OK);
    ck_assert_int_eq(exf_fold_decode_cuda(&none, &on_device, &o, NULL), EXF_FOLD_OK);
    ck_assert_int_eq(exf_fold_decode_joint_cuda(&none, &on_device, &o, NULL), EXF_FOLD_OK);
    ck_assert_int_eq(exf_fold_decode_static_cuda(&none, d.target, d.scale, 16, NULL), EXF_FOLD_OK);
    ck_assert_int_eq(exf_fold_decode_static_cuda(&io, NULL, d.scale, 16, NULL), EXF_FOLD_BAD_ARGUMENT);
    exf_fold_routes many = io;
    many.rows = FOLD_SLOTS + 1;
    many.width = 1;
    ck_assert_int_eq(exf_fold_decode_cuda(&many, &on_device, &o, NULL), EXF_FOLD_UNSUPPORTED);
    ck_assert_int_eq(exf_fold_decode_joint_cuda(&many, &on_device, &o, NULL), EXF_FOLD_UNSUPPORTED);
    o.pool = 0;
    ck_assert_int_eq(exf_fold_decode_cuda(&io, &on_device, &o, NULL), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_decode_joint_cuda(&io, &on_device, &o, NULL), EXF_FOLD_BAD_ARGUMENT);
    on_device.n_experts = 513;
    ck_assert_int_eq(exf_fold_decode_cuda(&io, &on_device, &o, NULL), EXF_FOLD_UNSUPPORTED);
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
}
END_TEST
#endif

void exf_suite(Suite *s)
{
#if EXF_HAVE_CUDA
    TCase *every = exf_case(s, "every"), *large_ones = exf_case(s, "large"), *odd_ones = exf_case(s, "odd"),
          *few = exf_case(s, "few");
    pairwise_shapes(&cases, "folds", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    pairwise_shapes(&many_cases, "folds of many rows", many_boundaries, COUNT(many_boundaries), many_dimensions, DIMENSIONS,
                    is_valid);
    tcase_add_unchecked_fixture(every, open_device, close_device);
    tcase_add_unchecked_fixture(large_ones, open_device, close_device);
    tcase_add_unchecked_fixture(odd_ones, open_device, close_device);
    tcase_add_unchecked_fixture(few, open_device, close_device); /* CK_RUN_CASE=few is what racecheck can do in a minute */
    tcase_add_loop_test(every, every_form_equals_the_cpu, 0, cases.n_shapes);
    tcase_add_loop_test(large_ones, many_rows_equal_the_cpu, 0, many_cases.n_shapes);
    tcase_add_loop_test(large_ones, large_batches_equal_the_cpu, 0, N_LARGE);
    tcase_add_loop_test(odd_ones, odd_numbers_choose_the_same_experts, 0, N_SHAPES);
    tcase_add_loop_test(few, a_captured_count_can_change, 0, PREFILLS_OF_PADDED);
    tcase_add_test(few, captured_choices_can_be_replayed);
    tcase_add_test(few, streams_do_not_disturb_one_another);
    tcase_add_test(few, bad_arguments_are_refused_before_the_device);
#endif
}
