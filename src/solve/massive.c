/* massive.c - names the layers in which a few tokens outweigh all others, and the experts that write these tokens' vectors or take
 * them back: massive activations and super experts (docs/method.md, section 9). */
#include "solve/solve_internal.h"

#include "base/log.h"
#include "base/text.h"

#include <math.h>

/* A layer is named where the mean of ||x||^2 is this many times one over the mean of 1 / ||x||^2, which is near what most tokens
 * have; an expert where the root mean square of its outputs' norms is this many times their mean.  Both are 1 where all tokens are
 * alike. */
static const double most_spread = 4;

exf_massive exf_massive_of(const exf_layer_statistics *s)
{
    exf_massive m = {.expert = -1};
    double all = 0;
    if (*s->stream_count && *s->stream_inverse_count)
        m.spread = exf_exact_value(s->stream_sq) / (double)*s->stream_count *
                   (exf_exact_value(s->stream_inverse_sq) / (double)*s->stream_inverse_count);
    if (*s->stream_first_count) m.first = exf_exact_value(s->stream_first_sq) / exf_exact_value(s->stream_sq);
    for (int e = 0; e < s->n_experts; e++) all += exf_exact_value(&s->sq_sum[e]);
    for (int e = 0; e < s->n_experts; e++) {
        double n = (double)s->norm_count[e], mean = exf_exact_value(&s->norm_sum[e]), sq = exf_exact_value(&s->sq_sum[e]);
        if (!(mean > 0) || sqrt(sq * n) <= most_spread * mean || sq / all <= m.share) continue;
        m.expert = e;
        m.share = sq / all;
    }
    return m;
}

exf_code exf_massive_facts(exf_tables *t, const exf_massive *layer, exf_err *err)
{
    exf_text layers = {0}, experts = {0}, tokens = {0};
    double largest = 0, least = INFINITY, most = 0; /* least, most: share of the named layers' energy that first tokens have */
    exf_code rc;
    for (int first = 0, last; first < t->n_layers; first = last + 1) { /* runs of named layers, "first-last" */
        last = first;
        if (layer[first].spread <= most_spread) continue;
        while (last + 1 < t->n_layers && layer[last + 1].spread > most_spread) last++;
        exf_text_appendf(&layers, "%s%d", layers.len ? "," : "", (int)t->layer_number[first]);
        if (last > first) exf_text_appendf(&layers, "-%d", (int)t->layer_number[last]);
    }
    for (int l = 0; l < t->n_layers; l++) {
        largest = fmax(largest, layer[l].spread);
        if (layer[l].spread > most_spread) {
            least = fmin(least, layer[l].first);
            most = fmax(most, layer[l].first);
        }
        if (layer[l].expert < 0) continue;
        exf_text_appendf(&experts, "%s%d of layer %d (%.0f %%)", experts.len ? ", " : "", layer[l].expert, (int)t->layer_number[l],
                         100 * layer[l].share);
    }
    if (most > 0) exf_text_appendf(&tokens, "%.1f to %.1f %%", 100 * least, 100 * most); /* earlier statistics do not tell */
    EXF_TRY(exf_text_end(&layers, err));
    EXF_TRY(exf_text_end(&experts, err));
    EXF_TRY(exf_text_end(&tokens, err));
    if (layers.len) {
        EXF_TRY(exf_provenance_add(&t->provenance, err, "solve.massive_layers", "%s", layers.s));
        exf_log_info("massive activations: after layers %s a few tokens' streams are so large that the mean square is up to %.3g "
                     "times what most tokens have", layers.s, largest);
    }
    if (tokens.len) {
        EXF_TRY(exf_provenance_add(&t->provenance, err, "solve.massive_first_tokens", "%s", tokens.s));
        exf_log_info("massive activations: the first tokens of sequences have %s of these layers' energy", tokens.s);
    }
    if (experts.len) {
        EXF_TRY(exf_provenance_add(&t->provenance, err, "solve.massive_experts", "%s", experts.s));
        exf_log_info("massive activations: experts whose outputs are a few tokens', with their share of the layer's energy: %s",
                     experts.s);
    }
out:
    exf_text_free(&layers);
    exf_text_free(&experts);
    exf_text_free(&tokens);
    return rc;
}
