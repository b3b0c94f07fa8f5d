/* check_moe_parts.c - what the MoE block is made of beside its kernels: blocks of
 * sequences, routes in two memories, positions of common input, and the arrays that
 * calls carve from an arena. */
#include "base/mem.h"
#include "pass/forward_internal.h"
#include "tests/support/fake_device.h"
#include "tests/support/fixtures.h"
#include "tests/support/golden_run.h"

#include <string.h>

static const uint64_t plenty = (uint64_t)1 << 40;
static exf_err e;

/* ---- sequences ---------------------------------------------------------------------- */

START_TEST(rows_that_are_not_finite_have_a_place)
{
    static const exf_span span[] = {{0, 4}, {4, 1}, {5, 6}};
    static const struct { size_t row; const char *place; } want[] = {
        {0, "sequence 0 at position 0"}, {3, "sequence 0 at position 3"}, {4, "sequence 1 at position 0"},
        {5, "sequence 2 at position 0"}, {10, "sequence 2 at position 5"}};
    exf_batch b = {.span = span, .n_sequences = 3, .n_tokens = 11, .max_tokens = 6};
    for (int i = 0; i < COUNT(want); i++) {
        exf_moe_layer l = {.batch = &b, .layer = 7};
        ck_fails(exf_moe_not_finite(&l, want[i].row, &e), EXF_NUMERIC, e, want[i].place);
        ck_assert(strstr(e.msg, "layer 7: the hidden state of ") == e.msg);
    }
}
END_TEST

/* ---- routes --------------------------------------------------------------------------- */

enum { TOKENS = 5, TOP_K = 3, SLOTS = TOKENS * TOP_K };

static void fill(int32_t *ids, float *weights, int from)
{
    for (int i = 0; i < SLOTS; i++) {
        ids[i] = from + i;
        weights[i] = (float)(from + i) / 8;
    }
}

/* Slots [first, first + n) hold what fill(.., part) gives, the others fill(.., rest). */
static void assert_filled(const int32_t *ids, const float *weights, int first, int n, int part, int rest)
{
    for (int i = 0; i < SLOTS; i++) {
        int want = i + (i >= first && i < first + n ? part : rest);
        ck_assert_int_eq(ids[i], want);
        ck_assert_float_eq(weights[i], (float)want / 8);
    }
}

START_TEST(parts_of_routes_travel)
{
    const exf_backend *b = fake_device(plenty);
    exf_route_set r, to;
    exf_queue *q;
    ck_ok(b->open(&q, EXF_COMPUTE_F32, &e), e);
    ck_ok(exf_route_set_new(&r, b, TOKENS, TOP_K, &e), e);
    ck_ok(exf_route_set_new(&to, b, TOKENS, TOP_K, &e), e);
    ck_assert_uint_eq(r.n, SLOTS);
    ck_assert(r.ids != r.ids_device && r.weights != r.weights_device);
    for (int first = 0; first < SLOTS; first += 4)
        for (int n = 0; first + n <= SLOTS; n++) {
            fill(r.ids, r.weights, 100);
            fill(r.ids_device, r.weights_device, 500);
            exf_route_set_send(&r, (size_t)first, (size_t)n, q);
            assert_filled(r.ids, r.weights, 0, SLOTS, 100, 0);
            assert_filled(r.ids_device, r.weights_device, first, n, 100, 500);
            fill(r.ids_device, r.weights_device, 500);
            ck_ok(exf_route_set_fetch(&r, (size_t)first, (size_t)n, q, &e), e);
            assert_filled(r.ids, r.weights, first, n, 500, 100);
        }
    fill(r.ids, r.weights, 1);
    exf_route_set_send(&r, 0, r.n, q);
    assert_filled(r.ids_device, r.weights_device, 0, SLOTS, 1, 0);
    exf_route_set_copy(&to, &r, q);
    assert_filled(to.ids_device, to.weights_device, 0, SLOTS, 1, 0);
    ck_assert_int_eq(to.ids[0], 0); /* the host's copy is fetched when it is needed */
    ck_ok(exf_route_set_fetch(&to, 0, SLOTS, q, &e), e);
    assert_filled(to.ids, to.weights, 0, SLOTS, 1, 0);
    exf_route_set_free(&r);
    exf_route_set_free(&to);
    exf_route_set_free(&to);
    b->close(q);
}
END_TEST

START_TEST(routes_of_the_cpu_are_in_one_memory)
{
    const exf_backend *b = &exf_backend_cpu;
    exf_route_set r;
    exf_queue *q;
    ck_ok(b->open(&q, EXF_COMPUTE_F32, &e), e);
    ck_ok(exf_route_set_new(&r, b, TOKENS, TOP_K, &e), e);
    ck_assert(r.ids == r.ids_device && r.weights == r.weights_device);
    fill(r.ids, r.weights, 9);
    exf_route_set_send(&r, 1, 4, q);
    ck_ok(exf_route_set_fetch(&r, 1, 4, q, &e), e);
    assert_filled(r.ids, r.weights, 0, SLOTS, 9, 0);
    exf_route_set_free(&r);
    b->close(q);
}
END_TEST

/* A set takes on the device what its size says; without memory it leaves nothing behind. */
START_TEST(routes_take_what_they_say)
{
    const exf_backend *b = fake_device(plenty);
    uint64_t before, now, peak;
    exf_route_set r;
    exf_code rc = EXF_NOSPACE;
    b->gpu->memory(&before, &peak);
    for (size_t n = 1; rc != EXF_OK; n++) {
        exf_mem_fail_at(n);
        rc = exf_route_set_new(&r, b, TOKENS, TOP_K, &e);
        exf_mem_fail_at(0);
        ck_assert(rc == EXF_OK ? n == 5 : rc == EXF_NOSPACE);
        b->gpu->memory(&now, &peak);
        if (rc == EXF_OK) ck_assert_uint_eq(now - before, exf_route_set_bytes(TOKENS, TOP_K));
        exf_route_set_free(&r);
        b->gpu->memory(&now, &peak);
        ck_assert_uint_eq(now, before);
    }
    ck_fails(exf_route_set_new(&r, b, SIZE_MAX / 2, 3, &e), EXF_NOSPACE, e, "9223372036854775807 3");
    exf_route_set_free(&r);
}
END_TEST

/* ---- common input ------------------------------------------------------------------------ */

START_TEST(common_tokens_are_the_middles_of_equal_parts)
{
    static const struct { int wanted, tokens;
    } cases[] = {{1, 1},  {1, 2}, {1, 9},     {2, 9},     {4, 4},          {5, 4},
                 {3, 10}, {7, 8}, {64, 4096}, {100, 101}, {3, 2147483647}, {4096, 2147483647}};
    for (int c = 0; c < COUNT(cases); c++) {
        int n = cases[c].tokens, wanted = cases[c].wanted, last = -1;
        exf_span span[] = {{0, 1}, {1, n}};
        exf_batch b = {.span = span, .n_sequences = 2};
        exf_observer o = {.common_input_tokens = wanted};
        exf_lane lane = {.observer = &o};
        exf_moe_layer l = {.batch = &b, .lane = &lane};
        ck_assert_int_eq(exf_common_input_tokens(&l, 1), n < wanted ? n : wanted);
        for (int i = 0; i < exf_common_input_tokens(&l, 1); i++) {
            int at = exf_common_input_position(&l, 1, i), parts = n < wanted ? n : wanted;
            double middle = (2.0 * i + 1) * n / (2.0 * parts);
            ck_assert_msg(at <= middle && at > middle - 1, "token %d of %d in %d: %d", i, parts, n, at);
            ck_assert(at > last && at < n);
            last = at;
        }
    }
}
END_TEST

/* ---- arrays ---------------------------------------------------------------------------------- */

enum { MOST_PIECES = 24 };

/* Pieces of an arena as its owner's header sizes them. */
typedef struct {
    struct { const char *name; const void *p; size_t bytes; } piece[MOST_PIECES];
    int n;
} pieces;

static void note(pieces *s, const char *name, const void *p, size_t bytes)
{
    ck_assert_int_lt(s->n, MOST_PIECES);
    ck_assert_msg(bytes == 0 || p != NULL, "%s is missing", name);
    s->piece[s->n].name = name;
    s->piece[s->n].p = p;
    s->piece[s->n++].bytes = bytes;
}

static uintptr_t address(const void *p)
{
    return (uintptr_t)p;
}

/* All lie within `used` floats after base, begin at whole lines of 256 bytes, and share no byte. */
static void assert_apart(const pieces *s, const float *base, size_t used)
{
    for (int i = 0; i < s->n; i++) {
        uintptr_t from = address(s->piece[i].p), to = from + s->piece[i].bytes;
        if (s->piece[i].bytes == 0) continue;
        ck_assert_msg(from >= address(base) && to <= address(base + used), "%s lies outside", s->piece[i].name);
        ck_assert_msg((from - address(base)) % 256 == 0, "%s is not aligned", s->piece[i].name);
        for (int j = 0; j < i; j++)
            ck_assert_msg(s->piece[j].bytes == 0 || to <= address(s->piece[j].p) ||
                              from >= address(s->piece[j].p) + s->piece[j].bytes,
                          "%s and %s overlap", s->piece[i].name, s->piece[j].name);
    }
}

static pieces moe_pieces(const exf_moe_arrays *m, const exf_backend *b, exf_compute compute, const exf_architecture *a, size_t t,
                         const exf_moe_needs *needs)
{
    pieces s = {.n = 0};
    exf_number number = exf_moe_number(compute);
    size_t h = (size_t)a->d_model, k = (size_t)a->top_k, each = exf_number_bytes(number),
           shown = t < EXF_MOE_BLOCK ? t : EXF_MOE_BLOCK;
    int normed = a->residual.normed, streams = a->residual.streams > 1 || normed, wide = number == EXF_NUMBER_F32;
    exf_expert_shape routed = exf_expert_shape_of(a, (int)t, a->n_experts, a->top_k, a->d_expert);
    note(&s, "u", m->u, streams ? t * h * 4 : 0);
    note(&s, "input", m->input, wide || needs->input ? t * h * 4 : 0);
    note(&s, "x", m->x.p, wide ? 0 : t * h * each);
    note(&s, "outputs", m->outputs.p, t * k * h * each);
    note(&s, "shared", m->shared.p, a->d_shared || a->d_ffn ? t * h * each : 0);
    note(&s, "shared weights", m->shared_weights, a->d_shared ? t * 4 : 0);
    note(&s, "routed", m->routed, needs->routed || normed ? t * h * 4 : 0);
    note(&s, "block", m->block, needs->block || streams ? t * h * 4 : 0);
    note(&s, "probe outputs", m->probe_outputs.p, needs->probes ? t * k * h * each : 0);
    note(&s, "probe routed", m->probe_routed, needs->probes ? t * h * 4 : 0);
    note(&s, "probe ids", m->probe_ids, needs->probes ? t * k * 4 : 0);
    note(&s, "only", m->only, t * 4);
    note(&s, "shown outputs", m->shown_outputs, needs->shown && !wide ? shown * k * h * 4 : 0);
    note(&s, "experts", m->experts, b->experts_workspace(&routed, number));
    ck_assert(m->outputs.number == number && m->x.number == number && m->shared.number == number &&
              m->probe_outputs.number == number);
    if (wide) ck_assert_ptr_eq(m->x.p, m->input);
    if (!needs->routed && !normed) ck_assert_ptr_null(m->routed);
    if (!needs->block && !streams) ck_assert_ptr_null(m->block);
    if (!wide && !needs->input) ck_assert_ptr_null(m->input);
    return s;
}

static float *floats(size_t n)
{
    float *p;
    ck_ok(exf_mem_new(&p, n, sizeof *p, "arena", &e), e);
    return p;
}

/* The workspace at the end is as large as the shared experts and the dense network need, too. */
static void assert_experts_fit(const exf_moe_arrays *m, const exf_backend *b, exf_compute compute, const exf_architecture *a, int t,
                               const float *end)
{
    int widths[] = {a->d_shared, a->d_ffn};
    for (int i = 0; i < 2; i++) {
        exf_expert_shape s = exf_expert_shape_of(a, t, 1, 1, widths[i]);
        if (widths[i]) ck_assert_uint_le(address(m->experts) + b->experts_workspace(&s, exf_moe_number(compute)), address(end));
    }
}

static const int token_counts[] = {1, 63, EXF_MOE_BLOCK, EXF_MOE_BLOCK + 77};

START_TEST(arrays_of_a_block_lie_side_by_side)
{
    golden_case c;
    golden_open(&c, golden_families[_i]);
    const exf_architecture *a = &c.model->arch;
    const exf_backend *b = fake_device(plenty);
    for (int n = 0; n < COUNT(token_counts); n++)
        for (unsigned bits = 0; bits < 64; bits++) {
            exf_compute compute = bits & 32 ? EXF_COMPUTE_BF16 : EXF_COMPUTE_F32;
            exf_moe_needs needs = {bits & 1, bits >> 1 & 1, bits >> 2 & 1, bits >> 3 & 1, bits >> 4 & 1};
            exf_moe_arrays m;
            exf_arena counted = {NULL, 0};
            exf_moe_carve(&m, &counted, b, compute, a, token_counts[n], &needs);
            exf_arena taken = {floats(counted.used), 0};
            exf_moe_carve(&m, &taken, b, compute, a, token_counts[n], &needs);
            ck_assert_uint_eq(taken.used, counted.used);
            pieces s = moe_pieces(&m, b, compute, a, (size_t)token_counts[n], &needs);
            assert_apart(&s, taken.base, taken.used);
            assert_experts_fit(&m, b, compute, a, token_counts[n], taken.base + taken.used);
            exf_mem_free(taken.base);
        }
    golden_close(&c);
}
END_TEST

START_TEST(arrays_of_common_input_lie_side_by_side)
{
    golden_case c;
    golden_open(&c, golden_families[_i]);
    const exf_architecture *a = &c.model->arch;
    const exf_backend *b = fake_device(plenty);
    size_t h = (size_t)a->d_model, experts = (size_t)a->n_experts;
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int n = 1; n < 40; n += 19) {
            exf_compute compute = bf16 ? EXF_COMPUTE_BF16 : EXF_COMPUTE_F32;
            exf_common_arrays m;
            exf_arena counted = {NULL, 0};
            exf_common_carve(&m, &counted, b, compute, a, n);
            exf_arena taken = {floats(counted.used), 0};
            exf_common_carve(&m, &taken, b, compute, a, n);
            ck_assert_uint_eq(taken.used, counted.used);
            size_t t = (size_t)n, each = bf16 ? 2 : 4;
            exf_expert_shape shape = exf_expert_shape_of(a, n, a->n_experts, a->n_experts, a->d_expert);
            pieces s = {.n = 0};
            note(&s, "outputs", m.outputs.p, t * experts * h * each);
            note(&s, "experts", m.experts, b->experts_workspace(&shape, exf_moe_number(compute)));
            note(&s, "hidden", m.hidden, t * exf_row_width(a) * 4);
            note(&s, "u", m.u, a->residual.streams > 1 ? t * h * 4 : 0);
            note(&s, "mixing", m.mixing, t * (size_t)exf_residual_mixing(a) * 4);
            note(&s, "x", m.x.p, t * h * each);
            note(&s, "row", m.row, t * 4);
            note(&s, "ids", m.ids, t * experts * 4);
            assert_apart(&s, taken.base, taken.used);
            if (bf16)
                ck_assert_ptr_null(m.input);
            else
                ck_assert_ptr_eq(m.input, m.x.p);
            exf_mem_free(taken.base);
        }
    golden_close(&c);
}
END_TEST

/* ---- what a pass needs ------------------------------------------------------------------------ */

START_TEST(needs_follow_from_lanes)
{
    const exf_backend *gpu = fake_device(plenty), *cpu = &exf_backend_cpu;
    exf_architecture plain = {.d_model = 8}, shared = {.d_model = 8, .d_shared = 4};
    static const struct {
        int on_cpu, with_shared;
        exf_demand d;
        exf_moe_needs want; /* routed, block, input, probes, shown */
    } cases[] = {
        {1, 0, {.lanes = 1}, {1, 1, 1, 0, 0}},
        {1, 1, {.lanes = 2, .probes = 1, .corrects = 1, .host_blocks = 1}, {1, 1, 1, 1, 0}},
        {0, 0, {.lanes = 1}, {0, 0, 0, 0, 0}},
        {0, 1, {.lanes = 1}, {0, 0, 1, 0, 0}},
        {0, 0, {.lanes = 1, .host_blocks = 1}, {1, 1, 1, 0, 1}},
        {0, 0, {.lanes = 2, .corrects = 1}, {1, 0, 0, 0, 0}},
        {0, 0, {.lanes = 3, .probes = 2}, {1, 0, 0, 1, 0}},
        {0, 1, {.lanes = 3, .probes = 2, .corrects = 1, .host_blocks = 1}, {1, 1, 1, 1, 1}},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        exf_moe_needs n = exf_moe_needs_of(cases[i].on_cpu ? cpu : gpu, cases[i].with_shared ? &shared : &plain, &cases[i].d),
                      w = cases[i].want;
        int got[] = {n.routed != 0, n.block != 0, n.input != 0, n.probes != 0, n.shown != 0};
        int want[] = {w.routed, w.block, w.input, w.probes, w.shown};
        ck_assert_msg(memcmp(got, want, sizeof got) == 0, "case %d: %d %d %d %d %d", i, got[0], got[1], got[2], got[3], got[4]);
    }
}
END_TEST

/* The workspace of a pass holds whichever of its parts is the largest. */
START_TEST(a_workspace_holds_each_part)
{
    golden_case c;
    golden_open(&c, golden_families[_i]);
    const exf_architecture *a = &c.model->arch;
    for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
        const exf_backend *b = on_gpu ? fake_device(plenty) : &exf_backend_cpu;
        exf_demand d = {.lanes = 2, .probes = 1, .head = 1, .common_input = 3, .host_blocks = 1}, no_head = d;
        exf_moe_needs needs = exf_moe_needs_of(b, a, &d);
        exf_arena moe = {NULL, 0}, head = {NULL, 0};
        exf_moe_arrays m;
        exf_head_arrays h;
        no_head.head = 0;
        exf_moe_carve(&m, &moe, b, EXF_COMPUTE_F32, a, 600, &needs);
        exf_head_carve(&h, &head, b, a);
        size_t parts[] = {moe.used, head.used, exf_mixing_floats(b, a, 40), exf_common_floats(b, EXF_COMPUTE_F32, a)}, most = 0,
               headless = 0;
        for (int i = 0; i < COUNT(parts); i++) {
            most = parts[i] > most ? parts[i] : most;
            headless = i != 1 && parts[i] > headless ? parts[i] : headless;
        }
        ck_assert_uint_eq(exf_workspace_floats(b, EXF_COMPUTE_F32, a, 40, 600, &d), most);
        ck_assert_uint_eq(exf_workspace_floats(b, EXF_COMPUTE_F32, a, 40, 600, &no_head), headless);
        size_t block = 600 * ((size_t)a->d_model * (3 + (size_t)a->top_k) + exf_row_width(a)),
               rows = (size_t)exf_head_rows(b) * (size_t)a->vocab;
        ck_assert_uint_eq(exf_mirror_floats(b, a, 600, &d), on_gpu ? block > rows ? block : rows : 0);
        d.scored = 1; /* logits are not copied */
        ck_assert_uint_eq(exf_mirror_floats(b, a, 600, &d), on_gpu ? block : 0);
        d.host_blocks = 0;
        ck_assert_uint_eq(exf_mirror_floats(b, a, 600, &d), 0);
    }
    ck_assert_int_eq(exf_host_block(EXF_MOE_BLOCK + 1), EXF_MOE_BLOCK);
    ck_assert_int_eq(exf_host_block(5), 5);
    golden_close(&c);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    int n = golden_n_families();
    tcase_add_test(t, rows_that_are_not_finite_have_a_place);
    tcase_add_test(t, parts_of_routes_travel);
    tcase_add_test(t, routes_of_the_cpu_are_in_one_memory);
    tcase_add_test(t, routes_take_what_they_say);
    tcase_add_test(t, common_tokens_are_the_middles_of_equal_parts);
    tcase_add_loop_test(t, arrays_of_a_block_lie_side_by_side, 0, n);
    tcase_add_loop_test(t, arrays_of_common_input_lie_side_by_side, 0, n);
    tcase_add_test(t, needs_follow_from_lanes);
    tcase_add_loop_test(t, a_workspace_holds_each_part, 0, n);
}
