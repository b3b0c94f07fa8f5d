/* compressor_cpu.c - see compressor.h.  Channels are pooled in pieces, so that their running
 * maximum and sums stay in registers or the first-level cache. */
#include "kernels/attention/compressor.h"

#include "kernels/rows/simd.h"

#include <math.h>
#include <stddef.h>

enum { PIECE = 64 };

/* The `ratio` slots of a window, in rows `ld` apart. */
typedef struct {
    const float *kv, *gate, *ape;
} run;

static inline void raise_tops(float *top, const run *r, int ratio, int ld, int n)
{
    for (int i = 0; i < ratio; i++) {
        const float *gate = r->gate + (size_t)i * (size_t)ld, *ape = r->ape + (size_t)i * (size_t)ld;
        for (int c = 0; c < n; c++) {
            float logit = gate[c] + ape[c];
            top[c] = logit > top[c] ? logit : top[c];
        }
    }
}

static inline void add_slots(double *sum, double *total, const float *top, const run *r, int ratio, int ld, int n)
{
    for (int i = 0; i < ratio; i++) {
        size_t at = (size_t)i * (size_t)ld;
        const float *kv = r->kv + at, *gate = r->gate + at, *ape = r->ape + at;
        for (int c = 0; c < n; c++) {
            float weight = exf_expf(gate[c] + ape[c] - top[c]);
            sum[c] += (double)weight;
            total[c] += (double)weight * (double)kv[c];
        }
    }
}

/* Pools n channels, at most PIECE, of one entry. */
static inline void pool(float *out, const run *runs, int n_runs, int ratio, int ld, int n)
{
    float top[PIECE];
    double sum[PIECE] = {0}, total[PIECE] = {0};
    for (int c = 0; c < n; c++) top[c] = -INFINITY;
    for (int i = 0; i < n_runs; i++) raise_tops(top, &runs[i], ratio, ld, n);
    for (int i = 0; i < n_runs; i++) add_slots(sum, total, top, &runs[i], ratio, ld, n);
    for (int c = 0; c < n; c++) out[c] = (float)(total[c] / sum[c]);
}

EXF_SIMD_CLONES void exf_compressor_cpu(float *out, const float *kv, const float *gate, const float *ape,
                                        const exf_compressor_shape *s)
{
    int d = s->d, ld = s->overlap ? 2 * d : d, own = s->overlap ? d : 0;
    size_t window = (size_t)s->ratio * (size_t)ld;
    for (int w = 0; w < s->n_entries; w++) {
        const float *k = kv + (size_t)w * window, *g = gate + (size_t)w * window;
        for (int c = 0; c < d; c += PIECE) {
            run runs[2] = {{k + own + c, g + own + c, ape + own + c}};
            int n_runs = 1, n = d - c < PIECE ? d - c : PIECE;
            if (s->overlap && w > 0) runs[n_runs++] = (run){k - window + c, g - window + c, ape + c};
            pool(out + (size_t)w * (size_t)d + c, runs, n_runs, s->ratio, ld, n);
        }
    }
}
