/* inspection_fixtures.h - statistics of experts that exist only here, and the tables that
 * they give: what the tests of src/inspect look at. */
#ifndef EXF_TESTS_INSPECTION_FIXTURES_H
#define EXF_TESTS_INSPECTION_FIXTURES_H
#include "tests/support/artifact_fixtures.h"

#include "inspect/inspection.h"
#include "solve/solve.h"

#include <math.h>

/* L layers of E experts, top-K, on n tokens: expert e gives its own direction in the plane,
 * turned a little by the token.  Expert E - 1 is never routed to. */
typedef struct {
    int l, e, k, n;
    const char *shard; /* "I/N of DIGEST"; NULL: the data are no shard */
    int d_model;       /* that the file names; 0: 2 */
    const char *const *facts; /* further ones, key and value after each other, NULL at the end; NULL: none */
} small_run;

static inline void small_output(int e, int token, double out[2])
{
    double angle = 0.3 * e + 0.05 * (token % 5), size = 1 + e % 3;
    out[0] = size * cos(angle);
    out[1] = size * sin(angle);
}

/* Token `token` to K neighbours, in a ring, among the first E - 1 experts. */
static inline int small_route(const small_run *r, int layer, int token, int place)
{
    return (token * (token % 3 ? 2 : 5) + layer + place) % (r->e - 1);
}

static inline void small_pair(exf_layer_statistics *s, int source, int target, int token)
{
    double u[2], v[2];
    size_t at = (size_t)source * (size_t)s->n_experts + (size_t)target;
    small_output(source, token, u);
    small_output(target, token, v);
    double uu = u[0] * u[0] + u[1] * u[1], vv = v[0] * v[0] + v[1] * v[1], uv = u[0] * v[0] + u[1] * v[1], w = sqrt(uu);
    exf_exact_add(&s->dot[at], w * uv);
    exf_exact_add(&s->target_sq[at], w * vv);
    exf_exact_add(&s->source_sq[at], w * uu);
    exf_exact_add(&s->dot0[at], uv);
    exf_exact_add(&s->sq0[at], uu);
    exf_exact_add(&s->cosine_sum[at], uu > 0 && vv > 0 ? uv / sqrt(uu * vv) : 0);
    s->count[at]++;
}

static inline void small_expert(exf_layer_statistics *s, int e, int token)
{
    double u[2];
    small_output(e, token, u);
    double sq = u[0] * u[0] + u[1] * u[1];
    exf_exact_add(&s->norm_sum[e], sqrt(sq));
    exf_exact_add(&s->sq_sum[e], sq);
    exf_exact_add(&s->route_weight_sum[e], 0.5);
    exf_exact_add(&s->contribution_sum[e], 0.5 * sqrt(sq));
    s->norm_count[e]++;
}

static inline void small_layer(const small_run *r, int layer, exf_layer_statistics *s)
{
    exf_layer_statistics_zero(s);
    for (int t = 0; t < r->n; t++)
        for (int a = 0; a < r->k; a++) {
            int source = small_route(r, layer, t, a);
            small_expert(s, source, t);
            for (int b = 0; b < r->k; b++)
                if (b != a) small_pair(s, source, small_route(r, layer, t, b), t);
        }
}

static inline void small_statistics(const small_run *r, const char *name)
{
    exf_err e;
    exf_run_shape shape = {r->e, r->k, r->d_model ? r->d_model : 2, 3, r->n};
    exf_provenance p = {0}, origin = {0};
    exf_statistics_writer w;
    exf_layer_statistics s;
    int32_t number[64];
    exf_statistics_header head = {.shape = shape, .layer_number = number, .n_layers = r->l, .provenance = &p, .origin = &origin};
    char tokens[16];
    for (int l = 0; l < r->l; l++) number[l] = 2 * l + 1;
    snprintf(tokens, sizeof tokens, "%d", r->n);
    add_fact(&p, "model.family", "made <up> & \"small\"");
    add_fact(&p, "data.sequences", "3");
    add_fact(&p, "data.tokens", tokens);
    add_fact(&p, "accumulate.pairs", "corouted");
    for (const char *const *f = r->facts; f && *f; f += 2) add_fact(&p, f[0], f[1]);
    ck_ok(exf_layer_statistics_new(&s, r->e, &e), e);
    if (r->shard) add_fact(&origin, "part.0.tokens_digest", "of the shard");
    if (r->shard) add_fact(&origin, "part.0.shard", r->shard);
    ck_ok(exf_statistics_start(&w, exf_scratch(name), 1, &head, &e), e);
    for (int l = 0; l < r->l; l++) {
        small_layer(r, l, &s);
        ck_ok(exf_statistics_put(&w, number[l], &s, &e), e);
    }
    ck_ok(exf_statistics_commit(&w, NULL, &e), e);
    exf_layer_statistics_free(&s);
    exf_provenance_free(&p);
    exf_provenance_free(&origin);
}

/* Statistics and the tables solved from them, with a pool of 2. */
static inline void small_files(const small_run *r, const char *statistics, const char *tables)
{
    static const int64_t pools[] = {2};
    exf_err e;
    exf_tables t;
    exf_solve_options o = {.rule = {.ridge = 1e-3, .clip = 1, .clip_min = -4, .clip_max = 4}, .pools = pools, .n_pools = 1,
                           .partial = r->shard != NULL};
    small_statistics(r, statistics);
    ck_ok(exf_solve(exf_scratch(statistics), &o, &t, &e), e);
    ck_ok(exf_tables_write(&t, exf_scratch(tables), 1, NULL, &e), e);
    exf_tables_free(&t);
}

/* Tables in memory that hold any numbers: all pairs seen but for one in `gap`. */
static inline exf_tables wide_tables(int l, int n_experts, int gap)
{
    exf_err err;
    exf_tables t;
    exf_run_shape shape = {n_experts, 2, 8, 3, 1000};
    int32_t number[64];
    for (int i = 0; i < l; i++) number[i] = i;
    ck_ok(exf_tables_new(&t, &shape, number, l, NULL, 0, &err), err);
    size_t e = (size_t)n_experts;
    uint32_t noise = 1;
    for (size_t i = 0; i < (size_t)l * e * e; i++) {
        noise = noise * 1664525u + 1013904223u;
        int self = i % e == i / e % e, seen = !self && (i % e + i / e % e) % (size_t)gap != 0;
        t.count[i] = seen ? 1 + (noise >> 20) : 0;
        t.coeff[i] = self ? 1 : seen ? (float)(noise >> 8) / (1 << 23) - 1 : 0;
        t.loss[i] = seen ? (float)(noise >> 9 & 0xffff) / 65536 : EXF_LOSS_NEVER;
    }
    for (size_t i = 0; i < (size_t)l * e; i++) {
        t.expert_count[i] = 10 + i % 7;
        t.expert_norms[i] = 1 + (float)(i % 13);
    }
    return t;
}
#endif
