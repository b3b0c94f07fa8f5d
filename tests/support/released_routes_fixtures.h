/* released_routes_fixtures.h - which experts the router of a made checkpoint chooses, so that no route is a near tie.
 *
 * Of the experts min(E, 3 K + 2) are live, spread over all, the first and the last among them; the router chooses no other one.
 * Some columns of the hidden state are tags, which no mixer, expert or dense layer writes to, so that a token's tags stay what its
 * embedding has there, times one number for all of them.  The router reads a live expert's logit from its tag, where the tokens
 * have the numbers of a row of equal steps, in another order each, and all dead experts' from one more tag, the anchor; its other
 * columns are small.  So logits of live experts are equal steps apart, and dead ones lie below, or, where a bias corrects the
 * choice, above, and the bias alone rules them out.  The bias also puts the first and the last expert before all others. */
#ifndef EXF_TESTS_RELEASED_ROUTES_FIXTURES_H
#define EXF_TESTS_RELEASED_ROUTES_FIXTURES_H
#include "tests/support/fixtures.h"

#include "base/hash.h"
#include "base/mem.h"
#include "model/architecture.h"

#include <math.h>

enum {
    LIVE_MOST = 62,      /* 2 rank - (n - 1) has 6 bits: bfloat16 holds it */
    RELEASED_IDS = 97,   /* distinct tokens, the vocabulary's first and last among them */
    RELEASED_BIAS = 8,   /* of the choice: above every score */
    RELEASED_GAIN = 8    /* of the router on tags */
};

typedef struct {
    const exf_architecture *a;
    int n_live, live[LIVE_MOST];
    int16_t *live_of; /* [E] an expert's place among the live ones; -1: it is dead */
    int16_t *tag_of;  /* [H] a column's live expert; n_live: the anchor; -1: no tag */
    unsigned char rank[RELEASED_IDS][LIVE_MOST]; /* of each live expert for a token: the highest is chosen first */
} released_routes;

/* Returns the token id of one of the tokens. */
static inline int32_t released_id(const exf_architecture *a, int i)
{
    return (int32_t)((int64_t)i * (a->vocab - 1) / (RELEASED_IDS - 1));
}

/* Of a live expert with the rank, at a hidden state's scale. */
static inline double released_score(int rank, int n_live, double scale)
{
    return 1 / (1 + exp(-RELEASED_GAIN * scale * (2 * rank - (n_live - 1)) / 64));
}

/* The sum of a group's two best, of sigmoid scores with the bias of the choice. */
static inline double released_group_score(const released_routes *c, const unsigned char *rank, int group, double scale)
{
    const exf_architecture *a = c->a;
    int size = a->n_experts / a->router.n_groups;
    double best = -1, second = -1;
    for (int i = 0; i < c->n_live; i++) {
        if (c->live[i] / size != group) continue;
        double s = released_score(rank[i], c->n_live, scale) + (i == 0 || i == c->n_live - 1 ? RELEASED_BIAS : 0);
        second = s > best ? best : s > second ? s : second;
        best = s > best ? s : best;
    }
    return best + second;
}

/* Returns the groups that are kept at a scale, as bits; 0 if another group is nearly as good. */
static inline uint64_t released_kept_groups(const released_routes *c, const unsigned char *rank, double scale)
{
    const exf_router_spec *r = &c->a->router;
    double score[64], least_kept = 1e9, best_other = -1e9;
    uint64_t kept = 0;
    for (int g = 0; g < r->n_groups; g++) score[g] = released_group_score(c, rank, g, scale);
    for (int g = 0; g < r->n_groups; g++) {
        int better = 0;
        for (int h = 0; h < r->n_groups; h++) better += score[h] > score[g];
        if (better < r->top_groups) {
            kept |= (uint64_t)1 << g;
            least_kept = fmin(least_kept, score[g]);
        } else {
            best_other = fmax(best_other, score[g]);
        }
    }
    return least_kept - best_other > 0.003 ? kept : 0;
}

/* Returns 1 if the groups that are kept are the same at every scale, and no near tie: always, but where a
 * score is a sum. */
static inline int released_groups_are_clear(const released_routes *c, const unsigned char *rank)
{
    const exf_router_spec *r = &c->a->router;
    if (r->n_groups == 1 || r->group_score != EXF_GROUP_TOP2_SUM) return 1;
    ck_assert_int_le(r->n_groups, 64);
    uint64_t first = released_kept_groups(c, rank, 0.2);
    for (double scale = 0.2; scale < 1.6; scale += 0.1)
        if (!first || released_kept_groups(c, rank, scale) != first) return 0;
    return 1;
}

static inline void released_shuffle(const released_routes *c, unsigned char *rank, uint64_t seed, uint64_t token)
{
    for (int i = 0; i < c->n_live; i++) rank[i] = (unsigned char)i;
    for (int i = c->n_live - 1; i > 0; i--) {
        int k = (int)(exf_rng_u64(seed, token, (uint64_t)i) % (uint64_t)(i + 1));
        unsigned char was = rank[i];
        rank[i] = rank[k];
        rank[k] = was;
    }
}

/* What a token's embedding has on a tag, exact in bfloat16: from -1/2 to 1/2. */
static inline float released_tag(const released_routes *c, int token, int tag)
{
    return tag == c->n_live ? 0.5f : (float)(2 * c->rank[token][tag] - (c->n_live - 1)) / 64;
}

static inline void released_routes_make(released_routes *c, const exf_architecture *a)
{
    exf_err e;
    int n = 3 * a->top_k + 2 < a->n_experts ? 3 * a->top_k + 2 : a->n_experts;
    c->a = a;
    c->n_live = n < LIVE_MOST ? n : LIVE_MOST;
    ck_ok(exf_mem_new(&c->live_of, (size_t)a->n_experts, sizeof *c->live_of, "test", &e), e);
    ck_ok(exf_mem_new(&c->tag_of, (size_t)a->d_model, sizeof *c->tag_of, "test", &e), e);
    for (int i = 0; i < a->n_experts; i++) c->live_of[i] = -1;
    for (int i = 0; i < a->d_model; i++) c->tag_of[i] = -1;
    for (int i = 0; i < c->n_live; i++) {
        c->live[i] = (int)((int64_t)i * (a->n_experts - 1) / (c->n_live - 1));
        c->live_of[c->live[i]] = (int16_t)i;
    }
    for (int i = 0; i <= c->n_live; i++) c->tag_of[(int64_t)i * (a->d_model - 1) / c->n_live] = (int16_t)i;
    for (int i = 0; i < RELEASED_IDS; i++) {
        uint64_t seed = 11;
        do {
            released_shuffle(c, c->rank[i], seed++, (uint64_t)i);
        } while (!released_groups_are_clear(c, c->rank[i]));
    }
}

static inline void released_routes_free(released_routes *c)
{
    exf_mem_free(c->live_of);
    exf_mem_free(c->tag_of);
}
#endif
