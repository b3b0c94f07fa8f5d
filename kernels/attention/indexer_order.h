/* indexer_order.h - selects the best entries of one row with the reference's steps, so that the
 * same of several equal scores are chosen; see compressed.h. */
#ifndef EXF_KERNELS_INDEXER_ORDER_H
#define EXF_KERNELS_INDEXER_ORDER_H
#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define EXF_HOST_DEVICE static __host__ __device__ inline
#else
#define EXF_HOST_DEVICE static inline
#endif

/* One row's entries while they are being ordered, best first. */
typedef struct {
    const float *score;
    int visible; /* entries from here on count as -infinity */
    int32_t *order;
} exf_row_order;

/* order[i] is strictly better than order[j]; a NaN is better than any number, so
 * that this is an order whatever the scores are, and the scans below end. */
EXF_HOST_DEVICE int exf_order_better(const exf_row_order *r, int i, int j)
{
    float a = r->order[i] < r->visible ? r->score[r->order[i]] : -INFINITY;
    float b = r->order[j] < r->visible ? r->score[r->order[j]] : -INFINITY;
    return (isnan(a) && !isnan(b)) || a > b;
}

EXF_HOST_DEVICE void exf_order_swap(const exf_row_order *r, int i, int j)
{
    int32_t t = r->order[i];
    r->order[i] = r->order[j];
    r->order[j] = t;
}

/* Of three places, the one that is neither best nor worst. */
EXF_HOST_DEVICE int exf_order_median(const exf_row_order *r, int a, int b, int c)
{
    if (exf_order_better(r, a, b)) return exf_order_better(r, b, c) ? b : exf_order_better(r, a, c) ? c : a;
    return exf_order_better(r, a, c) ? a : exf_order_better(r, b, c) ? c : b;
}

/* Splits [first, last) about a median of three, which it puts first: what is
 * before the returned place is no worse than what is from there on. */
EXF_HOST_DEVICE int exf_order_split(const exf_row_order *r, int first, int last)
{
    int i = first + 1, j = last;
    exf_order_swap(r, first, exf_order_median(r, first + 1, first + (last - first) / 2, last - 1));
    for (;;) {
        while (exf_order_better(r, i, first)) i++;
        while (exf_order_better(r, first, --j)) {
        }
        if (i >= j) return i;
        exf_order_swap(r, i++, j);
    }
}

/* Places 0 .. k-1 of 0 .. n-1 get the k best. */
EXF_HOST_DEVICE void exf_order_best(const exf_row_order *r, int n, int k)
{
    int first = 0, last = n;
    for (int j = 0; j < n; j++) r->order[j] = j;
    while (last - first > 3) {
        int cut = exf_order_split(r, first, last);
        if (cut <= k - 1)
            first = cut;
        else
            last = cut;
    }
    for (int i = first + 1; i < last; i++)
        for (int j = i; j > first && exf_order_better(r, j, j - 1); j--) exf_order_swap(r, j, j - 1);
}
#endif
