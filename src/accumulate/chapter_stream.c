/* chapter_stream.c - the energy of a layer's residual stream: squared norms and their inverses, added up exactly over the blocks
 * that show it (pass/hooks.h), for the sensitivities of budgets per token (docs/method.md, section 9); and the squared norms of the
 * sequences' first tokens, which say where massive activations are. */
#include "accumulate/accumulate_internal.h"

#include "kernels/statistics/divergence.h"

#include <math.h>
#include <string.h>

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

/* In host memory a token's energy is a sum of products in double, eight lanes in fixed order; on a GPU squares are added up in
 * double.  Leaves out energies that are not finite: the pass refuses such hidden states. */
exf_code exf_stream_add_block(exf_accumulator *a, const exf_moe_block *b, exf_err *err)
{
    exf_stream_energy *s = &a->stream;
    exf_stream_sums *own = &s->worker[b->worker];
    if (!b->stream && (b->q || !b->stream_sq)) return EXF_OK;
    if (b->q) {
        for (size_t i = sequence_from(b->batch, b->row); i < b->batch->n_sequences; i++) {
            size_t at = b->batch->span[i].offset - b->row;
            if (at >= (size_t)b->n_tokens) break;
            s->b->gpu->row_energies(b->q, s->device + 1, b->stream + at * (size_t)b->stream_width, 1, b->stream_width);
            own->first_count++;
        }
        s->b->gpu->row_energies(b->q, s->device, b->stream, b->n_tokens, b->stream_width);
        s->q = b->q;
    }
    for (int t = 0; !b->q && t < b->n_tokens; t++) {
        const float *row = b->stream ? b->stream + (size_t)t * (size_t)b->stream_width : NULL;
        double energy = row ? exf_row_energy(row, b->stream_width) : b->stream_sq[t];
        if (!exf_exact_fits(energy)) {
            if (!isfinite(energy)) continue;
            return exf_fail(err, EXF_NUMERIC, "token %d: the residual stream has squared norm %g, outside the range of the sums", t,
                            energy);
        }
        exf_exact_add(&own->sum, energy);
        exf_exact_add(&own->inverse, 1 / fmax(energy, EXF_LEAST_ENERGY));
        if (b->position + t > 0) continue;
        exf_exact_add(&own->first, energy);
        own->first_count++;
    }
    own->count += (uint64_t)b->n_tokens;
    return EXF_OK;
}

/* Adds what came since the last layer to the first worker's sums. */
exf_code exf_stream_end_layer(exf_accumulator *a, int layer, exf_err *err)
{
    exf_stream_energy *s = &a->stream;
    const exf_layer_statistics *to = &a->sums[0];
    exf_row_energies sums[2];
    exf_exact unused = {{0, 0, 0}};
    exf_code rc = EXF_OK;
    for (int i = 0; i < a->n_workers; i++) {
        const exf_stream_sums *from = &s->worker[i];
        exf_exact_merge(to->stream_sq, &from->sum);
        exf_exact_merge(to->stream_inverse_sq, &from->inverse);
        exf_exact_merge(to->stream_first_sq, &from->first);
        *to->stream_count += from->count;
        *to->stream_inverse_count += from->count;
        *to->stream_first_count += from->first_count;
    }
    memset(s->worker, 0, (size_t)a->n_workers * sizeof *s->worker);
    if (!s->q) return EXF_OK;
    EXF_TRY(s->b->download(s->q, sums, s->device, sizeof sums, err));
    s->b->zero(s->q, s->device, sizeof sums);
    if (sums[0].out_of_range)
        rc = exf_fail(err, EXF_NUMERIC, "layer %d: the residual stream of %llu tokens has a squared norm outside the range of the "
                      "sums", layer, sums[0].out_of_range);
    exf_row_energies_read(&sums[0], to->stream_sq, to->stream_inverse_sq);
    exf_row_energies_read(&sums[1], to->stream_first_sq, &unused);
out:
    s->q = NULL;
    return rc;
}

/* ---- what cannot be ---------------------------------------------------------------------------------- */

exf_code exf_stream_check_layer(const exf_layer_read *read, const exf_layer_statistics *s, exf_err *err)
{
    const char *path = exf_h5_path(read->r->h);
    int layer = read->layer;
    unsigned long long n = *s->stream_count, n_inverse = *s->stream_inverse_count, n_first = *s->stream_first_count;
    long long most = (long long)read->r->shape.n_tokens;
    if (!read->has[EXF_PART_STREAM]) return EXF_OK;
    double energy = exf_exact_value(s->stream_sq), inverse = exf_exact_value(s->stream_inverse_sq);
    double first = exf_exact_value(s->stream_first_sq);
    if (!(energy > 0) || n < 1 || n > (unsigned long long)most)
        return exf_fail(err, EXF_FORMAT,
                        "%s: /layers/%d/stream has an energy of %.17g over %llu tokens, expected one above 0 over 1 to %lld", path,
                        layer, energy, n, most);
    if (n_inverse > n || (inverse > 0) != (n_inverse > 0))
        return exf_fail(err, EXF_FORMAT,
                        "%s: /layers/%d/stream_inverse has a sum of %.17g over %llu tokens, expected one above 0 over 1 to %llu",
                        path, layer, inverse, n_inverse, n);
    if (first >= 0 && first <= energy && n_first <= n && (first == 0 || n_first > 0)) return EXF_OK;
    return exf_fail(err, EXF_FORMAT,
                    "%s: /layers/%d/stream_first has an energy of %.17g over %llu tokens, expected at most the stream's %.17g over "
                    "%llu", path, layer, first, n_first, energy, n);
}
