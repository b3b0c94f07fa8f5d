/* chapter_stream.c - the energy of a layer's residual stream: squared norms and their inverses, added up exactly over the blocks
 * that show it (pass/hooks.h), for the sensitivities of budgets per token (docs/method.md, section 9); and the squared norms of the
 * sequences' first tokens, which say where massive activations are. */
#include "accumulate/accumulate_internal.h"

#include "base/mem.h"
#include "kernels/statistics/divergence.h"

#include <math.h>

exf_code exf_stream_begin_pass(exf_accumulator *a, exf_err *err)
{
    exf_stream_energy *s = &a->stream;
    size_t n_workers = (size_t)a->n_workers;
    exf_code rc;
    EXF_TRY(exf_mem_new(&s->sum, n_workers, sizeof *s->sum, "energy of the stream", err));
    EXF_TRY(exf_mem_new(&s->inverse, n_workers, sizeof *s->inverse, "energy of the stream", err));
    EXF_TRY(exf_mem_new(&s->first, n_workers, sizeof *s->first, "energy of the stream", err));
    EXF_TRY(exf_mem_new(&s->count, n_workers, sizeof *s->count, "energy of the stream", err));
    EXF_TRY(exf_mem_new(&s->first_count, n_workers, sizeof *s->first_count, "energy of the stream", err));
out:
    return rc;
}

void exf_stream_end_pass(exf_accumulator *a)
{
    exf_stream_energy *s = &a->stream;
    if (s->b) s->b->free(s->device);
    exf_mem_free(s->sum);
    exf_mem_free(s->inverse);
    exf_mem_free(s->first);
    exf_mem_free(s->count);
    exf_mem_free(s->first_count);
}

/* ---- in host memory --------------------------------------------------------------------------------- */

/* A token's energy is a sum of products in double, eight lanes in fixed order.  Leaves out energies that are not finite: the pass
 * refuses such hidden states. */
static exf_code add_on_host(exf_stream_energy *s, const exf_moe_block *b, exf_err *err)
{
    if (!b->stream && !b->stream_sq) return EXF_OK;
    for (int t = 0; t < b->n_tokens; t++) {
        const float *row = b->stream ? b->stream + (size_t)t * (size_t)b->stream_width : NULL;
        double energy = row ? exf_row_energy(row, b->stream_width) : b->stream_sq[t];
        if (!exf_exact_fits(energy)) {
            if (!isfinite(energy)) continue;
            return exf_fail(err, EXF_NUMERIC, "token %d: the residual stream has squared norm %g, outside the range of the sums", t,
                            energy);
        }
        exf_exact_add(&s->sum[b->worker], energy);
        exf_exact_add(&s->inverse[b->worker], 1 / fmax(energy, EXF_LEAST_ENERGY));
        if (b->position + t > 0) continue;
        exf_exact_add(&s->first[b->worker], energy);
        s->first_count[b->worker]++;
    }
    s->count[b->worker] += (uint64_t)b->n_tokens;
    return EXF_OK;
}

/* ---- in GPU memory ---------------------------------------------------------------------------------- */

uint64_t exf_stream_device_bytes(void)
{
    return 2 * sizeof(exf_row_energies);
}

exf_code exf_stream_open_device(exf_accumulator *a, const exf_backend *b, exf_err *err)
{
    a->stream.b = b;
    return b->alloc(&a->stream.device, 2, sizeof *a->stream.device, "energy of the stream", err);
}

/* Returns the first of the batch's sequences that begins at row `row` or after it. */
static size_t sequence_from(const exf_batch *batch, size_t row)
{
    size_t low = 0, high = batch->n_sequences;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (batch->span[middle].offset < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Squares are added up in double. */
static void add_on_device(exf_stream_energy *s, const exf_moe_block *b)
{
    if (!b->stream) return;
    for (size_t i = sequence_from(b->batch, b->row); i < b->batch->n_sequences; i++) {
        size_t at = b->batch->span[i].offset - b->row;
        if (at >= (size_t)b->n_tokens) break;
        s->b->gpu->row_energies(b->q, s->device + 1, b->stream + at * (size_t)b->stream_width, 1, b->stream_width);
        s->device_first_count++;
    }
    s->b->gpu->row_energies(b->q, s->device, b->stream, b->n_tokens, b->stream_width);
    s->q = b->q;
    s->device_count += (uint64_t)b->n_tokens;
}

static exf_code take_device(exf_stream_energy *s, const exf_layer_statistics *to, int layer, exf_err *err)
{
    exf_row_energies sums[2];
    exf_exact unused = {{0, 0, 0}};
    exf_code rc;
    if (!s->q) return EXF_OK;
    EXF_TRY(s->b->download(s->q, sums, s->device, sizeof sums, err));
    s->b->zero(s->q, s->device, sizeof sums);
    if (sums[0].out_of_range)
        rc = exf_fail(err, EXF_NUMERIC, "layer %d: the residual stream of %llu tokens has a squared norm outside the range of the "
                      "sums", layer, sums[0].out_of_range);
    exf_row_energies_read(&sums[0], to->stream_sq, to->stream_inverse_sq);
    exf_row_energies_read(&sums[1], to->stream_first_sq, &unused);
    *to->stream_count += s->device_count;
    *to->stream_inverse_count += s->device_count;
    *to->stream_first_count += s->device_first_count;
out:
    s->q = NULL;
    s->device_count = s->device_first_count = 0;
    return rc;
}

/* ---- what cannot be ---------------------------------------------------------------------------------- */

static exf_code check_first(const exf_layer_read *read, const exf_layer_statistics *s, exf_err *err)
{
    double first = exf_exact_value(s->stream_first_sq), all = exf_exact_value(s->stream_sq);
    uint64_t n = *s->stream_first_count;
    if (first >= 0 && first <= all && n <= *s->stream_count && (first == 0 || n > 0)) return EXF_OK;
    return exf_fail(err, EXF_FORMAT,
                    "%s: /layers/%d/stream_first has an energy of %.17g over %llu tokens, expected at most the stream's %.17g over "
                    "%llu",
                    exf_h5_path(read->r->h), read->layer, first, (unsigned long long)n, all, (unsigned long long)*s->stream_count);
}

exf_code exf_stream_check_layer(const exf_layer_read *read, exf_layer_statistics *s, exf_err *err)
{
    const exf_statistics_reader *r = read->r;
    int layer = read->layer;
    if (!read->has[EXF_PART_STREAM]) return EXF_OK;
    double energy = exf_exact_value(s->stream_sq), inverse = exf_exact_value(s->stream_inverse_sq);
    int has_energy = energy > 0 && *s->stream_count >= 1 && *s->stream_count <= (uint64_t)r->shape.n_tokens;
    int has_inverse = *s->stream_inverse_count <= *s->stream_count && (inverse > 0) == (*s->stream_inverse_count > 0);
    if (has_energy && has_inverse) return check_first(read, s, err);
    if (has_energy)
        return exf_fail(err, EXF_FORMAT,
                        "%s: /layers/%d/stream_inverse has a sum of %.17g over %llu tokens, expected one above 0 over 1 to %llu",
                        exf_h5_path(r->h), layer, inverse, (unsigned long long)*s->stream_inverse_count,
                        (unsigned long long)*s->stream_count);
    return exf_fail(err, EXF_FORMAT,
                    "%s: /layers/%d/stream has an energy of %.17g over %llu tokens, expected one above 0 over 1 to %lld",
                    exf_h5_path(r->h), layer, energy, (unsigned long long)*s->stream_count, (long long)r->shape.n_tokens);
}

/* ---- the chapter ------------------------------------------------------------------------------------ */

exf_code exf_stream_add_block(exf_accumulator *a, const exf_moe_block *b, exf_err *err)
{
    if (!b->q) return add_on_host(&a->stream, b, err);
    add_on_device(&a->stream, b);
    return EXF_OK;
}

/* Adds what came since the last layer to the first worker's sums. */
exf_code exf_stream_end_layer(exf_accumulator *a, int layer, exf_err *err)
{
    exf_stream_energy *s = &a->stream;
    const exf_layer_statistics *to = &a->sums[0];
    for (int i = 0; i < a->n_workers; i++) {
        exf_exact_merge(to->stream_sq, &s->sum[i]);
        exf_exact_merge(to->stream_inverse_sq, &s->inverse[i]);
        exf_exact_merge(to->stream_first_sq, &s->first[i]);
        *to->stream_count += s->count[i];
        *to->stream_inverse_count += s->count[i];
        *to->stream_first_count += s->first_count[i];
        s->sum[i] = s->inverse[i] = s->first[i] = (exf_exact){{0, 0, 0}};
        s->count[i] = s->first_count[i] = 0;
    }
    return take_device(s, to, layer, err);
}
