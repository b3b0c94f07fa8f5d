/* fold_decode_cuda.cu - see exfold/fold.h: one block sees the whole batch. */
#include "kernels/fold_cuda.cuh"

#ifndef EXF_FOLD_DECODE_THREADS
#define EXF_FOLD_DECODE_THREADS 1024
#endif
enum { THREADS = EXF_FOLD_DECODE_THREADS, HELD = 2048 / THREADS };

template <exf_fold_int I, exf_fold_real R, int H>
static __global__ void __launch_bounds__(THREADS)
    decode(const exf_fold_routes routes, const exf_fold_tables t, const exf_fold_decode_options o)
{
    __shared__ exf_fold_block_pool pool;
    __shared__ int16_t target[EXF_FOLD_MAX_E];
    __shared__ float scale[EXF_FOLD_MAX_E];
    const exf_fold_routes io = exf_fold_typed<I, R>(routes);
    exf_fold_slots<THREADS, H> slots;
    int n_union = exf_fold_block_choose(&pool, &slots, io, t, o);
    if (n_union == 0) return;
    exf_fold_find_targets<THREADS>(
        &pool, n_union, o.pool, t.loss, t.n_experts, [](float loss) { return loss; },
        [&](int source, int to) {
            int pair = source * t.n_experts + to;
            float loss = __ldg(t.loss + pair), coeff = __ldg(t.coeff + pair);
            int none = !exf_fold_may_take(loss, o.max_loss); /* the least of all is not allowed */
            target[source] = none ? pool.expert[0] : (int16_t)to;
            scale[source] = none || o.drop ? 0.0f : coeff;
        });
    __syncthreads();
    slots.each(io, t.n_experts, [&](int slot, int e, float w) {
        if (pool.position[e] < o.pool) return;
        exf_fold_set_id(&io, slot, target[e]);
        exf_fold_set_weight(&io, slot, scale[e] == 0 ? 0.0f : exf_mulf(w, scale[e]));
    });
}

exf_fold_status exf_fold_decode_cuda(const exf_fold_routes *io, const exf_fold_tables *t, const exf_fold_decode_options *o,
                                     void *stream)
{
    typedef void (*kernel)(exf_fold_routes, exf_fold_tables, exf_fold_decode_options);
    static const kernel held[2][3] = EXF_FOLD_BY_TYPE(decode, HELD), large[2][3] = EXF_FOLD_BY_TYPE(decode, 0);
    exf_fold_status status = exf_fold_check_decode(io, t, o, 0);
    int slots = status == EXF_FOLD_OK ? io->rows * io->width : 0;
    if (slots == 0 || slots <= o->pool) return status;
    kernel k = (slots <= HELD * THREADS ? held : large)[io->id_type][io->weight_type];
    return exf_fold_launch(k, 1, THREADS, 1, stream, *io, *t, *o);
}

/* ---- a pool fixed beforehand ----------------------------------------------------------- */

enum { STATIC_THREADS = 256 };

template <exf_fold_int I, exf_fold_real R>
static __global__ void __launch_bounds__(STATIC_THREADS)
    remap(const exf_fold_routes routes, const int32_t *target_ids, const float *target_scale, int n_experts)
{
    const exf_fold_routes io = exf_fold_typed<I, R>(routes);
    int64_t slot = (int64_t)blockIdx.x * STATIC_THREADS + threadIdx.x;
    if (slot >= (int64_t)io.rows * io.width) return;
    int id = exf_fold_id(&io, slot, n_experts);
    float w = exf_fold_weight(&io, slot);
    if (id < 0) return;
    int to = __ldg(target_ids + id);
    float scale = __ldg(target_scale + id);
    if (to == id && scale == 1) return;
    exf_fold_set_id(&io, slot, to);
    exf_fold_set_weight(&io, slot, exf_mulf(w, scale));
}

exf_fold_status exf_fold_decode_static_cuda(const exf_fold_routes *io, const int32_t *target_ids, const float *target_scale,
                                            int n_experts, void *stream)
{
    static void (*const kernels[2][3])(exf_fold_routes, const int32_t *, const float *, int) = EXF_FOLD_BY_TYPE(remap);
    exf_fold_status status = exf_fold_check_routes(io, n_experts);
    if (status != EXF_FOLD_OK) return status;
    if (!target_ids || !target_scale) return EXF_FOLD_BAD_ARGUMENT;
    int64_t slots = (int64_t)io->rows * io->width;
    if (slots == 0) return EXF_FOLD_OK;
    unsigned blocks = (unsigned)((slots + STATIC_THREADS - 1) / STATIC_THREADS);
    return exf_fold_launch(kernels[io->id_type][io->weight_type], blocks, STATIC_THREADS, 1, stream, *io, target_ids, target_scale,
                           n_experts);
}
