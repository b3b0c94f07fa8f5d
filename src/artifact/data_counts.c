/* data_counts.c - refuses counts that cannot be; see data.h. */
#include "artifact/data.h"

#include "base/text.h"

#include <inttypes.h>

/* Adds without wrapping: a sum of forged counts stays too large. */
static uint64_t add_counts(uint64_t sum, uint64_t n)
{
    return n > UINT64_MAX - sum ? UINT64_MAX : sum + n;
}

static exf_code check_experts(const exf_layer_counts *c, exf_err *err)
{
    uint64_t all = 0, tokens = (uint64_t)c->run->n_tokens, slots = tokens * (uint64_t)c->run->top_k;
    for (int64_t e = 0; e < c->run->n_experts; e++) {
        if (c->expert_count[e] > tokens)
            return exf_fail(err, EXF_FORMAT, "%s: layer %d: %s%" PRId64 "] is %" PRIu64 ", n_tokens is %" PRIu64, c->path, c->layer,
                            c->experts, e, c->expert_count[e], tokens);
        all = add_counts(all, c->expert_count[e]);
    }
    if (c->empty_slots <= slots - tokens && all == slots - c->empty_slots) return EXF_OK;
    return exf_fail(err, EXF_FORMAT,
                    "%s: layer %d: %s...] add up to %" PRIu64 " routes, expected n_tokens x top_k = %" PRIu64 " x %" PRId64
                    " = %" PRIu64 " less %" PRIu64 " empty slots",
                    c->path, c->layer, c->experts, all, tokens, c->run->top_k, slots, c->empty_slots);
}

static exf_code check_mirrored(const exf_layer_counts *c, exf_err *err)
{
    size_t e = (size_t)c->run->n_experts;
    for (size_t s = 0; s < e; s++)
        for (size_t t = 0; t <= s; t++) {
            uint64_t n = c->count[t * e + s], mirror = c->count[s * e + t];
            if (s == t && n)
                return exf_fail(err, EXF_FORMAT, "%s: layer %d: %s%zu, %zu] is %" PRIu64 ", expected 0 of an expert with itself",
                                c->path, c->layer, c->pairs, s, s, n);
            if (n != mirror)
                return exf_fail(err, EXF_FORMAT, "%s: layer %d: %s%zu, %zu] is %" PRIu64 ", its mirror %s%zu, %zu] is %" PRIu64,
                                c->path, c->layer, c->pairs, t, s, n, c->pairs, s, t, mirror);
        }
    return EXF_OK;
}

static exf_code check_common(const exf_layer_counts *c, exf_err *err)
{
    size_t e = (size_t)c->run->n_experts;
    for (size_t s = 0; s < e; s++)
        for (size_t t = 0; t < e; t++) {
            uint64_t n = c->count[s * e + t], first = c->count[e > 1];
            if (s == t || (n == first && n >= c->common.least && n <= c->common.most)) continue;
            if (n != first)
                return exf_fail(err, EXF_FORMAT,
                                "%s: layer %d: %s%zu, %zu] is %" PRIu64 ", with common input every pair has %" PRIu64, c->path,
                                c->layer, c->pairs, s, t, n, first);
            return exf_fail(err, EXF_FORMAT,
                            "%s: layer %d: %s%zu, %zu] is %" PRIu64 ", the run's common input has %" PRIu64 " to %" PRIu64
                            " tokens",
                            c->path, c->layer, c->pairs, s, t, n, c->common.least, c->common.most);
        }
    return EXF_OK;
}

/* Checks the pairs of source s; *lacking grows by the routes that its tokens lack for K - 1 pairs each. */
static exf_code check_pairs_of(const exf_layer_counts *c, size_t s, uint64_t *lacking, exf_err *err)
{
    size_t e = (size_t)c->run->n_experts;
    uint64_t own = c->expert_count[s], others = (uint64_t)c->run->top_k - 1, all = 0;
    for (size_t t = 0; t < e; t++) {
        uint64_t n = c->count[s * e + t], other = c->expert_count[t];
        if (n > own || n > other)
            return exf_fail(err, EXF_FORMAT, "%s: layer %d: %s%zu, %zu] is %" PRIu64 ", expert %zu has %" PRIu64 " tokens, %s%zu]",
                            c->path, c->layer, c->pairs, s, t, n, n > own ? s : t, n > own ? own : other, c->experts,
                            n > own ? s : t);
        all += n; /* at most that of all experts' tokens: no sum of them wraps */
    }
    if (all > own * others || (!c->empty_slots && all < own * others))
        return exf_fail(err, EXF_FORMAT,
                        "%s: layer %d: %s%zu, ...] add up to %" PRIu64 ", the %" PRIu64 " tokens of expert %zu have %" PRIu64
                        " other routes each, %" PRIu64,
                        c->path, c->layer, c->pairs, s, all, own, s, others, own * others);
    *lacking = add_counts(*lacking, own * others - all);
    return EXF_OK;
}

/* A token with d routes lacks K - d for each of them, and has K - d empty slots. */
static exf_code check_corouted(const exf_layer_counts *c, exf_err *err)
{
    uint64_t lacking = 0, most = (uint64_t)c->run->top_k - 1;
    exf_code rc = EXF_OK;
    for (size_t s = 0; rc == EXF_OK && s < (size_t)c->run->n_experts; s++) rc = check_pairs_of(c, s, &lacking, err);
    if (rc != EXF_OK || !most) return rc; /* a token with one slot has a route in it */
    if (lacking >= c->empty_slots && lacking / most + (lacking % most > 0) <= c->empty_slots) return EXF_OK;
    return exf_fail(err, EXF_FORMAT,
                    "%s: layer %d: %s...] add up to %" PRIu64 " less than without empty slots, of which there are %" PRIu64
                    ": expected 1 to %" PRIu64 " for each",
                    c->path, c->layer, c->pairs, lacking, c->empty_slots, most);
}

exf_code exf_counts_check(const exf_layer_counts *c, exf_err *err)
{
    exf_code rc;
    EXF_TRY(check_experts(c, err));
    EXF_TRY(check_mirrored(c, err));
    rc = c->common.most ? check_common(c, err) : check_corouted(c, err);
out:
    return rc;
}

exf_code exf_common_tokens_of(exf_common_tokens *out, const exf_run_shape *run, const exf_sequence_list *sequences,
                              const exf_provenance *p, const char *path, exf_err *err)
{
    const char *text = exf_provenance_get(p, "accumulate.observer_tokens");
    uint64_t tokens = (uint64_t)run->n_tokens;
    int64_t each = run->n_tokens;
    if (text && (!exf_parse_i64(text, &each) || each < 1))
        return exf_fail(err, EXF_FORMAT, "%s: provenance says accumulate.observer_tokens is %s, expected a number from 1", path,
                        text);
    *out = (exf_common_tokens){tokens > 0, tokens};
    if (!text) return EXF_OK;
    if (sequences && sequences->length) {
        uint64_t all = 0;
        for (size_t i = 0; i < sequences->n; i++) all += (uint64_t)(sequences->length[i] < each ? sequences->length[i] : each);
        *out = (exf_common_tokens){all, all};
    } else {
        uint64_t n = (uint64_t)run->n_sequences;
        if (n && tokens / n >= (uint64_t)each) out->most = n * (uint64_t)each;
        out->least = n < tokens ? n : tokens;
    }
    return EXF_OK;
}
