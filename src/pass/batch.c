/* batch.c - blocks and parts of a batch; see batch.h. */
#include "pass/batch.h"

#include "base/mem.h"

/* ---- blocks ------------------------------------------------------------------------------------ */

size_t exf_sequence_of(const exf_batch *batch, size_t from, size_t row)
{
    size_t end = batch->n_sequences;
    while (end - from > 1) {
        size_t middle = from + (end - from) / 2;
        if (batch->span[middle].offset <= row) from = middle;
        else end = middle;
    }
    return from;
}

size_t exf_moe_call_end(const exf_batch *batch, size_t sequence, size_t row, size_t end, size_t most)
{
    size_t last = end - row <= most ? end : row + most;
    if (last == end || most < EXF_MOE_BLOCK) return last;
    size_t first = batch->span[exf_sequence_of(batch, sequence, last)].offset;
    size_t between = first + (last - first) / EXF_MOE_BLOCK * EXF_MOE_BLOCK;
    return between > row ? between : last;
}

/* ---- parts ------------------------------------------------------------------------------------- */

/* The places where runs may be cut: the first sequence of every group, and the end. */
typedef struct {
    size_t *at;       /* [n + 1] */
    uint64_t *tokens; /* [n + 1] before each */
    size_t n;         /* groups */
} cuts;

static exf_code list_cuts(cuts *c, const exf_batch *all, const size_t *group_of, exf_err *err)
{
    uint64_t tokens = 0;
    exf_code rc;
    EXF_TRY(exf_mem_new(&c->at, all->n_sequences + 1, sizeof *c->at, "parts of a run", err));
    EXF_TRY(exf_mem_new(&c->tokens, all->n_sequences + 1, sizeof *c->tokens, "parts of a run", err));
    for (size_t i = 0; i < all->n_sequences; i++) {
        if (i == 0 || !group_of || group_of[i] != group_of[i - 1]) {
            c->at[c->n] = i;
            c->tokens[c->n++] = tokens;
        }
        tokens += (uint64_t)all->span[i].n_tokens;
    }
    c->at[c->n] = all->n_sequences;
    c->tokens[c->n] = tokens;
out:
    return rc;
}

/* Returns how far cut i is from k / n of all tokens, times n. */
static uint64_t distance(const cuts *c, size_t i, size_t k, size_t n)
{
    uint64_t here = c->tokens[i] * n, wanted = c->tokens[c->n] * k;
    return here < wanted ? wanted - here : here - wanted;
}

exf_code exf_deal(size_t *first, const exf_batch *all, const size_t *group_of, size_t n, exf_err *err)
{
    cuts c = {.n = 0};
    size_t cut = 0;
    exf_code rc;
    EXF_TRY(list_cuts(&c, all, group_of, err));
    if (c.n < n) {
        rc = exf_fail(err, EXF_USAGE, "%zu parts for %zu %s: a part would be empty", n, c.n,
                      group_of ? "decode batches" : "sequences");
        goto out;
    }
    first[0] = 0;
    for (size_t k = 1; k < n; k++) {
        cut++;
        while (cut < c.n - (n - k) && distance(&c, cut + 1, k, n) < distance(&c, cut, k, n)) cut++;
        first[k] = c.at[cut];
    }
    first[n] = all->n_sequences;
out:
    exf_mem_free(c.at);
    exf_mem_free(c.tokens);
    return rc;
}

size_t exf_part_row(const exf_batch *all, size_t first)
{
    return first < all->n_sequences ? all->span[first].offset : all->n_tokens;
}

exf_code exf_batch_part(exf_batch *part, exf_span **span, const exf_batch *all, size_t first, size_t end, exf_err *err)
{
    size_t row = exf_part_row(all, first);
    exf_code rc;
    EXF_TRY(exf_mem_new(span, end - first, sizeof **span, "sequences of a part", err));
    *part = (exf_batch){.ids = all->ids ? all->ids + row : NULL, .span = *span, .n_sequences = end - first};
    for (size_t i = first; i < end; i++) {
        (*span)[i - first] = (exf_span){all->span[i].offset - row, all->span[i].n_tokens};
        part->n_tokens += (size_t)all->span[i].n_tokens;
        if (all->span[i].n_tokens > part->max_tokens) part->max_tokens = all->span[i].n_tokens;
    }
out:
    return rc;
}
