/* check_cuda_route_fold_shapes.c - routes of a run folded and counted in GPU memory (kernels/fold/route_fold.h) at shapes made from
 * its constants: what the functions of exfold/fold.h on the CPU give row by row and step by step, bit for bit.  Nothing beyond the
 * routes or the workspace is written. */
#include "kernels/fold/fold_internal.h"
#include "tests/support/fold_abi_fixtures.h"
#include "tests/support/pairwise.h"
#include "tests/support/one_device_fixtures.h" /* after it: its device is called d */

enum { EXPERTS = 40, GUARD = 64 }; /* GUARD: bytes after an array */
static exf_err e;
static fold_tables tables;

/* ---- a run on both sides ------------------------------------------------------------------------------ */

typedef struct {
    size_t rows, k;
    int32_t *ids, *routed;
    float *weights, *norms;
} run_here;

/* Slots without an expert have -1; `routed` are the ids of each row, the last first. */
static run_here run_of(size_t rows, int k)
{
    size_t n = rows * (size_t)k;
    run_here r = {rows, (size_t)k, test_memory(n, 4), test_memory(n, 4), test_memory(n, 4), test_memory(n, 4)};
    for (size_t row = 0; row < rows; row++) {
        int id[FOLD_K];
        fold_fill_row(id, r.weights + row * r.k, k, EXPERTS, 11, row, row % 3 ? ROUTES_PLAIN : ROUTES_AWKWARD);
        for (size_t i = 0; i < r.k; i++) {
            size_t at = row * r.k + i;
            r.ids[at] = id[i] < 0 || id[i] >= EXPERTS ? -1 : id[i];
            r.routed[row * r.k + r.k - 1 - i] = r.ids[at];
            r.norms[at] = (float)exp(2 * fold_uniform(12, 0, at) - 1);
        }
    }
    return r;
}

static void run_free(run_here *r)
{
    exf_mem_free(r->ids);
    exf_mem_free(r->routed);
    exf_mem_free(r->weights);
    exf_mem_free(r->norms);
}

/* host's bytes on the device, before poison. */
static void *put_guarded(const void *host, size_t bytes)
{
    char *all = test_memory(bytes + GUARD, 1);
    memset(all, 0xff, bytes + GUARD);
    if (host) memcpy(all, host, bytes);
    void *there = device_put(&d, all, bytes + GUARD);
    exf_mem_free(all);
    return there;
}

static int guard_is_whole(const void *there, size_t bytes)
{
    unsigned char *all = device_get(&d, there, bytes + GUARD);
    int whole = 1;
    for (size_t i = bytes; i < bytes + GUARD; i++) whole &= all[i] == 0xff;
    exf_mem_free(all);
    return whole;
}

static exf_fold_tables tables_there(void)
{
    size_t cells = EXPERTS * EXPERTS * 4;
    return (exf_fold_tables){.coeff = device_put(&d, tables.coeff, cells), .loss = device_put(&d, tables.loss, cells),
                             .norms = device_put(&d, tables.norms, EXPERTS * 4), .cosine = device_put(&d, tables.cosine, cells),
                             .rms = device_put(&d, tables.rms, EXPERTS * 4), .n_experts = EXPERTS};
}

static void free_there(const void *const *all, int n)
{
    for (int i = 0; i < n; i++)
        if (all[i]) d.b->free((void *)(uintptr_t)all[i]);
}

static void free_tables(const exf_fold_tables *t)
{
    const void *all[] = {t->coeff, t->loss, t->norms, t->cosine, t->rms};
    free_there(all, COUNT(all));
}

/* norms 0: none; 1: of the slots; 2: of `routed`. */
static exf_run_routes run_there(const run_here *r, int norms)
{
    size_t bytes = r->rows * r->k * 4;
    return (exf_run_routes){.ids = put_guarded(r->ids, bytes), .weights = put_guarded(r->weights, bytes), .n_tokens = r->rows,
                            .top_k = (int)r->k, .norms = norms ? device_put(&d, r->norms, bytes) : NULL,
                            .routed = norms == 2 ? device_put(&d, r->routed, bytes) : NULL};
}

/* The device's routes are r's, and what lies behind them is untouched; frees them. */
static void assert_same_run(const exf_run_routes *there, const run_here *r, const char *what)
{
    size_t n = r->rows * r->k;
    int32_t *ids = device_get(&d, there->ids, n * 4);
    float *weights = device_get(&d, there->weights, n * 4);
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(ids[i] == r->ids[i] && memcmp(&weights[i], &r->weights[i], 4) == 0,
                      "%s: row %zu, slot %zu: %d %a, expected %d %a", what, i / r->k, i % r->k, (int)ids[i], (double)weights[i],
                      (int)r->ids[i], (double)r->weights[i]);
    ck_assert_msg(guard_is_whole(there->ids, n * 4) && guard_is_whole(there->weights, n * 4), "%s: written beyond the routes",
                  what);
    const void *all[] = {there->ids, there->weights, there->norms, there->routed};
    free_there(all, COUNT(all));
    exf_mem_free(ids);
    exf_mem_free(weights);
}

/* ---- prefill ------------------------------------------------------------------------------------------------ */

/* FORM: exf_prefill_form; MASKED 1: a third of the rows is no prefill; NORMED 1: by norms of each route. */
enum { ROWS, TOP_K, KEEP, FORM, MASKED, NORMED, PREFILL_DIMENSIONS };
static const dimension prefill_dimensions[] = {{"rows", 1, 131073}, {"top-k", 1, 16}, {"kept", 1, 16},
                                               {"form", 0, 4},      {"masked", 0, 1}, {"normed", 0, 1}};

static const boundary prefill_boundaries[] = {
    {"fold/route_fold_cuda.cu", "THREADS", ROWS, 256},
    {"fold/route_fold.h", "most = 65536", ROWS, 65536}, /* rows of a tile: one, two and three of them */
    {"fold/route_fold.h", "most = 65536", ROWS, 2 * 65536},
    {"fold/fold_internal.h", "EXF_FOLD_MAX_K", TOP_K, 16},
    {"fold/fold_lanes.cuh", "s.lane >= o.keep", KEEP, 1},
    {"fold/route_fold_cuda.cu", "min(r.n, c.keep)", KEEP, 16},
    {"fold/route_fold.h", "EXF_PREFILL_JOINED", FORM, 1},
    {"fold/route_fold.h", "EXF_PREFILL_KEPT", FORM, 3},
};

static int prefill_is_valid(const shape *s)
{
    return s->at[KEEP] <= s->at[TOP_K] && s->at[ROWS] * s->at[TOP_K] <= 1 << 18 &&
           (s->at[FORM] != EXF_PREFILL_BY_BUDGET || s->at[KEEP] == s->at[TOP_K]);
}

static pairwise prefills;

/* A row of one of the baselines that runtimes do not have. */
static void keep_row(int32_t *ids, float *weights, const float *norms, int k, const exf_prefill_call *c)
{
    int32_t key[FOLD_K], id[FOLD_K];
    float w[FOLD_K], kept = 0, all = 0;
    double sum = 0;
    int n = 0, above = c->form == EXF_PREFILL_ABOVE;
    for (int i = 0; i < k; i++) {
        if (ids[i] < 0) continue;
        float h = c->options.rank == EXF_FOLD_BY_SCORE ? 0 : norms ? norms[i] : tables.norms[ids[i]];
        int32_t mine = exf_fold_rank_key(c->options.rank, weights[i], h);
        int at = n++;
        for (; at > 0 && mine > key[at - 1]; at--) {
            key[at] = key[at - 1];
            id[at] = id[at - 1];
            w[at] = w[at - 1];
        }
        key[at] = mine;
        id[at] = ids[i];
        w[at] = weights[i];
    }
    for (int i = 0; i < n; i++) {
        all = exf_addf(all, w[i]);
        sum = exf_addd(sum, (double)w[i]);
        if (i < c->keep) kept = exf_addf(kept, w[i]);
    }
    float factor = !above && c->renorms && kept > 0 ? exf_divf(all, kept) : 1;
    for (int i = 0; i < k; i++) {
        int runs = i < n && (i < c->keep || (above && exf_fold_reaches(c->factor, (double)w[i], c->tau, sum)));
        ids[i] = runs ? id[i] : -1;
        weights[i] = runs ? exf_mulf(w[i], factor) : 0;
    }
}

/* A row of the others; `in` is the row. */
static void fold_row(const exf_fold_routes *in, const exf_prefill_call *c)
{
    int32_t id[FOLD_K];
    float w[FOLD_K];
    exf_fold_routes out = {.ids = id, .weights = w, .rows = 1, .width = in->width};
    exf_fold_status s = c->form == EXF_PREFILL_BY_BUDGET ? exf_fold_prefill_budget_cpu(in, &out, NULL, &tables.t, &c->budget)
                        : c->form == EXF_PREFILL_JOINED  ? exf_fold_prefill_joint_cpu(in, &out, &tables.t, &c->options)
                                                         : exf_fold_prefill_cpu(in, &out, &tables.t, &c->options);
    ck_assert_int_eq(s, EXF_FOLD_OK);
    for (int i = 0; i < in->width; i++) {
        ((int32_t *)in->ids)[i] = id[i];
        ((float *)in->weights)[i] = id[i] >= 0 ? w[i] : 0;
    }
}

static void prefill_here(run_here *r, const exf_prefill_call *c, const unsigned char *mask, int normed)
{
    for (size_t row = 0; row < r->rows; row++) {
        size_t at = row * r->k;
        exf_fold_routes in = {.ids = r->ids + at, .weights = r->weights + at, .rows = 1, .width = (int)r->k,
                              .norms = normed ? r->norms + at : NULL};
        if (mask && !mask[row]) continue;
        if (c->form == EXF_PREFILL_KEPT || c->form == EXF_PREFILL_ABOVE)
            keep_row(r->ids + at, r->weights + at, in.norms, in.width, c);
        else
            fold_row(&in, c);
    }
}

START_TEST(prefill_rows_are_those_of_the_cpu)
{
    const shape *s = &prefills.shapes[_i];
    const char *what = pairwise_name(prefill_dimensions, PREFILL_DIMENSIONS, s);
    run_here r = run_of((size_t)s->at[ROWS], s->at[TOP_K]);
    unsigned char *mask = test_memory(r.rows, 1);
    size_t room = exf_route_fold_workspace(r.rows, 1, s->at[TOP_K], 0);
    exf_prefill_call c = {.form = (exf_prefill_form)s->at[FORM], .options = EXF_FOLD_PREFILL_INIT, .budget = EXF_FOLD_BUDGET_INIT,
                          .keep = s->at[KEEP], .renorms = _i % 2, .factor = 1, .tau = 0.2, .widest = 1};
    for (size_t row = 0; row < r.rows; row++) mask[row] = row % 3 != 1;
    fold_fill_tables(&tables, EXPERTS, 5, TABLES_REAL);
    exf_run_routes there = run_there(&r, s->at[NORMED]);
    c.tables = tables_there();
    c.options.rank = (exf_fold_rank)(_i % 3);
    c.options.keep = s->at[KEEP];
    c.budget.penalty = 0.02f;
    c.prefill = s->at[MASKED] ? device_put(&d, mask, r.rows) : NULL;
    c.workspace = put_guarded(NULL, room);
    ck_assert_int_eq(d.b->gpu->prefill_routes(d.q, &there, &c), EXF_FOLD_OK);
    ck_ok(d.b->finish(d.q, &e), e);
    prefill_here(&r, &c, s->at[MASKED] ? mask : NULL, s->at[NORMED]);
    assert_same_run(&there, &r, what);
    ck_assert_msg(guard_is_whole(c.workspace, room), "%s: written beyond the workspace", what);
    const void *all[] = {c.prefill, c.workspace};
    free_there(all, COUNT(all));
    free_tables(&c.tables);
    exf_mem_free(mask);
    run_free(&r);
}
END_TEST

/* ---- decode ------------------------------------------------------------------------------------------------- */

/* ROWS in steps of WIDEST, of one and of none.  REST 0: weights as they are folded, 1: dropped, 2: renormalised, 3: both. */
enum { WIDEST = KEEP, REST = MASKED, STEP_DIMENSIONS = PREFILL_DIMENSIONS };
static const dimension step_dimensions[] = {{"rows", 1, 65537}, {"top-k", 1, 16}, {"widest", 1, 65},
                                            {"form", 0, 3},     {"rest", 0, 3},   {"norms", 0, 2}};

static const boundary step_boundaries[] = {
    {"fold/route_fold_cuda.cu", "THREADS", ROWS, 256},
    {"fold/route_fold_cuda.cu", "MOST_STEPS", ROWS, 65535}, /* of one row each */
    {"fold/route_fold.h", "most = 65536", ROWS, 65536},
    {"fold/fold_joint_cuda.cu", "io->width > 8", TOP_K, 8},
    {"fold/fold_internal.h", "EXF_FOLD_MAX_K", TOP_K, 16},
    {"fold/route_fold_cuda.cu", "end - at < MOST_STEPS", WIDEST, 2},
    {"fold/fold_joint_cuda.cu", "EXF_FOLD_THREADS / W", WIDEST, 512 / 16},
    {"fold/fold_joint_cuda.cu", "EXF_FOLD_THREADS / W", WIDEST, 512 / 8},
    {"fold/route_fold.h", "EXF_STEPS_JOINED", FORM, 1},
    {"fold/route_fold.h", "EXF_STEPS_BY_ROUTER", FORM, 3},
    {"fold/route_fold.h", "most_scored = 8192", ROWS, 8192}, /* rows of a tile with scores: one, two and three of them */
    {"fold/route_fold.h", "most_scored = 8192", ROWS, 2 * 8192},
    {"fold/route_fold_cuda.cu", "c->drops, c->renorms", REST, 1},
    {"fold/route_fold_cuda.cu", "c->drops, c->renorms", REST, 2},
    {"fold/route_fold_cuda.cu", "if (!of.routed)", NORMED, 1},
};

static int steps_are_valid(const shape *s)
{
    return s->at[ROWS] * s->at[TOP_K] <= 1 << 18 && s->at[WIDEST] <= s->at[ROWS];
}

static pairwise steps;

/* Cuts `rows` into steps of `widest`, one and no row; returns how many there are.  first has room for 3 * rows + 1. */
static size_t cut(size_t *first, size_t rows, size_t widest)
{
    size_t n = 0;
    for (size_t at = 0; at < rows; n++) {
        size_t size = n % 3 == 1 ? 1 : n % 3 == 2 && widest > 1 ? 0 : widest;
        first[n] = at;
        at += size < rows - at ? size : rows - at;
    }
    first[n] = rows;
    return n;
}

/* The norm of a row's slot: of the first slot of `routed` with its expert, else of the last. */
static float norm_here(const run_here *r, size_t row, size_t k, int norms)
{
    size_t at = row * r->k, slot = 0;
    if (norms == 1) return r->norms[at + k];
    while (slot + 1 < r->k && r->routed[at + slot] != r->ids[at + k]) slot++;
    return r->norms[at + slot];
}

/* Puts the row that was folded back. */
static void put_back(int32_t *ids, float *weights, const int32_t *id, float *w, size_t k, int drops, int renorms)
{
    float all = 0, kept = 0;
    for (size_t i = 0; i < k; i++) {
        if (drops && id[i] != ids[i]) w[i] = 0;
        all = exf_addf(all, id[i] >= 0 ? weights[i] : 0);
        kept = exf_addf(kept, id[i] >= 0 ? w[i] : 0);
    }
    for (size_t i = 0; i < k; i++) {
        ids[i] = id[i];
        weights[i] = renorms ? exf_mulf(w[i], kept > 0 ? exf_divf(all, kept) : 1) : w[i];
    }
}

/* What a step is folded with on the CPU. */
typedef struct {
    int norms;
    int32_t target[EXPERTS], member[EXPERTS];
    float scale[EXPERTS], bias[EXPERTS];
    const float *logits; /* [rows, EXPERTS] */
} step_inputs;

static exf_fold_status stand_in_here(const exf_fold_routes *io, const size_t *row, const exf_steps_call *c, const step_inputs *in)
{
    static float choice[65 * EXPERTS], gate[65 * EXPERTS];
    for (int i = 0; i < io->rows; i++) {
        double score[EXPERTS];
        exf_router_scores_cpu(score, in->logits + row[i] * EXPERTS, c->score, EXPERTS);
        for (int j = 0; j < EXPERTS; j++) {
            gate[i * EXPERTS + j] = (float)score[j];
            choice[i * EXPERTS + j] = (float)(c->bias ? score[j] + (double)in->bias[j] : score[j]);
        }
    }
    exf_fold_scores s = {.choice = choice, .gate = gate, .type = EXF_FOLD_F32};
    return exf_fold_decode_stand_ins_cpu(io, &s, c->members ? in->member : NULL, &tables.t, &c->stand_ins);
}

static void step_here(run_here *r, const size_t *row, int n, const exf_steps_call *c, const step_inputs *in)
{
    int norms = in->norms;
    static int32_t id[65 * FOLD_K];
    static float w[65 * FOLD_K], own[65 * FOLD_K];
    exf_fold_routes io = {.ids = id, .weights = w, .rows = n, .width = (int)r->k, .norms = norms ? own : NULL};
    exf_fold_status s;
    for (size_t i = 0; i < (size_t)n * r->k; i++) {
        size_t from = row[i / r->k] * r->k + i % r->k;
        id[i] = r->ids[from];
        w[i] = r->weights[from];
        own[i] = norms ? norm_here(r, row[i / r->k], i % r->k, norms) : 0;
    }
    s = c->form == EXF_STEPS_REMAPPED    ? exf_fold_decode_static_cpu(&io, in->target, in->scale, EXPERTS)
        : c->form == EXF_STEPS_BY_ROUTER ? stand_in_here(&io, row, c, in)
        : c->form == EXF_STEPS_JOINED    ? exf_fold_decode_joint_cpu(&io, &tables.t, &c->options)
                                      : exf_fold_decode_cpu(&io, &tables.t, &c->options);
    ck_assert_int_eq(s, EXF_FOLD_OK);
    for (size_t i = 0; i < (size_t)n; i++)
        put_back(r->ids + row[i] * r->k, r->weights + row[i] * r->k, id + i * r->k, w + i * r->k, r->k, c->drops, c->renorms);
}

/* The run has 20 rows that are in no step, and steps have its rows from the last to the first. */
START_TEST(steps_are_those_of_the_cpu)
{
    const shape *s = &steps.shapes[_i];
    const char *what = pairwise_name(step_dimensions, STEP_DIMENSIONS, s);
    size_t rows = (size_t)s->at[ROWS], *first = test_memory(3 * rows + 1, sizeof *first), *row = test_memory(rows, sizeof *row);
    size_t n = cut(first, rows, (size_t)s->at[WIDEST]), room;
    run_here r = run_of(rows + 20, s->at[TOP_K]);
    step_inputs in = {.norms = s->at[NORMED]};
    float *logits = test_memory(r.rows * EXPERTS, sizeof *logits);
    for (size_t i = 0; i < rows; i++) row[i] = rows + 9 - i;
    for (int i = 0; i < EXPERTS; i++) {
        in.target[i] = i % 3 ? i : i / 2;
        in.scale[i] = i % 3 ? 1 : 0.75f;
        in.member[i] = i * 5 % EXPERTS;
        in.bias[i] = 0.1f * (float)fold_uniform(13, 0, (uint64_t)i);
    }
    for (size_t i = 0; i < r.rows * EXPERTS; i++) logits[i] = (float)(6 * fold_uniform(14, 0, i) - 3);
    in.logits = logits;
    fold_fill_tables(&tables, EXPERTS, 6, TABLES_REAL);
    exf_run_routes there = run_there(&r, s->at[NORMED]);
    exf_steps_call c = {.form = (exf_steps_form)s->at[FORM], .options = EXF_FOLD_DECODE_INIT, .tables = tables_there(),
                        .target_ids = device_put(&d, in.target, sizeof in.target),
                        .target_scale = device_put(&d, in.scale, sizeof in.scale), .stand_ins = EXF_FOLD_STAND_IN_INIT,
                        .logits = device_put(&d, logits, r.rows * EXPERTS * sizeof *logits), .score = (exf_router_score)(_i % 3),
                        .members = _i % 4 == 0 ? device_put(&d, in.member, sizeof in.member) : NULL,
                        .bias = _i % 2 ? device_put(&d, in.bias, sizeof in.bias) : NULL,
                        .drops = s->at[REST] % 2, .renorms = s->at[REST] / 2};
    c.options.pool = c.stand_ins.pool = 1 + _i % 9;
    c.stand_ins.weights = (exf_fold_stand_in_weights)(_i / 2 % 3);
    c.stand_ins.importance = (exf_fold_importance)(_i / 3 % 3);
    c.steps = (exf_route_steps){n, rows, device_put(&d, first, (n + 1) * sizeof *first), device_put(&d, row, rows * sizeof *row),
                                first, s->at[WIDEST]};
    room = exf_route_fold_workspace(r.rows, s->at[WIDEST], s->at[TOP_K], c.form == EXF_STEPS_BY_ROUTER ? EXPERTS : 0);
    c.workspace = put_guarded(NULL, room);
    ck_assert_int_eq(d.b->gpu->step_routes(d.q, &there, &c), EXF_FOLD_OK);
    ck_ok(d.b->finish(d.q, &e), e);
    for (size_t i = 0; i < n; i++)
        if (first[i + 1] > first[i])
            step_here(&r, row + first[i], (int)(first[i + 1] - first[i]), &c, &in);
    assert_same_run(&there, &r, what);
    ck_assert_msg(guard_is_whole(c.workspace, room), "%s: written beyond the workspace", what);
    const void *all[] = {c.target_ids, c.target_scale, c.steps.first, c.steps.row, c.workspace, c.logits, c.members, c.bias};
    free_there(all, COUNT(all));
    free_tables(&c.tables);
    exf_mem_free(first);
    exf_mem_free(row);
    exf_mem_free(logits);
    run_free(&r);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    pairwise_shapes(&prefills, "prefill of a run", prefill_boundaries, COUNT(prefill_boundaries), prefill_dimensions,
                    PREFILL_DIMENSIONS, prefill_is_valid);
    pairwise_shapes(&steps, "steps of a run", step_boundaries, COUNT(step_boundaries), step_dimensions, STEP_DIMENSIONS,
                    steps_are_valid);
    tcase_add_unchecked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, prefill_rows_are_those_of_the_cpu, 0, prefills.n_shapes);
    tcase_add_loop_test(t, steps_are_those_of_the_cpu, 0, steps.n_shapes);
}
