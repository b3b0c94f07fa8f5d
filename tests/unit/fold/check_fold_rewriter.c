/* check_fold_rewriter.c - every kind of variant on routes made by hand, against a naive double
 * computation (tests/support/naive_fold.c): which positions, which experts, which weights. */
#include "tests/support/fold_fixtures.h"

#include "fold/runtime.h"

static const struct { int n_experts, top_k; } sizes[] = {{5, 2}, {7, 3}, {8, 4}};
enum { SIZES = sizeof sizes / sizeof *sizes };

static const char *const texts[] = {
    /* prefill */
    "P1", "P2", "P2:rank=score", "P2:rank=norm", "P1:rank=score_norm", "P1:projector=layer", "P2:projector=global",
    "P2:projector=joint",
    "P1:projector=joint,ridge=0", "P2:projector=joint,ridge=0.3,rank=score", "P2:max_loss=0.4", "P1:max_loss=0.2,rescale=sum",
    "P2:rescale=l2",
    "P1:rescale=sum,rank=norm", "P2:projector=joint,rescale=sum", "P1:confidence=on", "P2:confidence=on,max_loss=0.5,rescale=l2",
    "P2:projector=diagonal", "P1:projector=lowrank2,rank=score",
    "top1", "top2", "top1:drop", "top2:drop", "top2:renorm", "random1", "random2", "random2:seed=7,rank=score",
    "P1:budget=token", "P2:budget=token,sensitivity=output", "P2:budget=token,sensitivity=measured,ridge=0.01", "P2:budget=topp",
    "P1:budget=topp,ridge=0", "skip1:tau=0.3", "skip2:tau=0.4,factor=output", "skip1:tau=0.2,factor=measured",
    "skip0:tau=0.35", "skip0:budget=2", "skip1:tau=0.1,factor=skip",
    /* decode */
    "D1", "D2", "D3", "D4", "D5", "D2:fold=drop", "D3:rank=energy", "D2:projector=layer", "D3:projector=global",
    "D2:projector=joint",
    "P2:loss=frobenius,rank=score,confidence=on", "P1:loss=frobenius,max_loss=0.7",
    "D3:rank=score", "D2:loss=frobenius", "D2:rank=score,loss=frobenius,max_loss=0.3,fallback=first", "D1:fallback=first",
    "D2:projector=joint,rank=score", "D3:projector=joint,rank=energy,ridge=0.2",
    "D1:projector=joint,ridge=0.001", "D2:max_loss=0.3", "D2:pool=static",
    "D2:pool=static,fold=drop", "sere1", "sere2", "sere1:rho=0.5", "sere2:rho=0.99", "sere1:rho=1",
    "D2:targets=router", "D3:rank=energy,targets=router,ridge=0.2", "D2:targets=router,weights=route",
    "D3:targets=router,weights=gate,rank=energy", "D1:targets=router", "D2:pool=static,targets=router",
    "D2:pool=static,by=reap", "D2:pool=static,by=energy,projector=joint", "D2:pool=static,by=energy,targets=router,weights=route",
    "D2:pool=static,by=reap,targets=router,weights=gate", "D2:pool=static,projector=joint,ridge=0.3",
    "D2:pool=static,by=reap,fold=drop", "D2:fold=renorm", "D1:fold=renorm,rank=energy", "D2:pool=static,fold=renorm",
    "D2:fold=random", "D3:fold=random,rank=score,seed=7", "D2:pool=static,by=energy,fold=random", "D1:fold=random,projector=layer",
    /* both */
    "P1+D2", "P2:budget=token+D3:rank=energy,targets=router", "P1:budget=topp+D2:pool=static,by=energy",
    "skip1:tau=0.3+D2:projector=joint", "P2:rank=score+D3:rank=energy", "top2:drop+sere1:rho=0.2", "random1:seed=3+D2:pool=static",
    "P2:projector=joint+D2:projector=joint",
    "P2:projector=layer+D3:projector=global,fold=drop", "random2+D2:fold=random", "top2:renorm+D2:fold=renorm",
};
enum { TEXTS = sizeof texts / sizeof *texts };

static naive_row row_of(const exf_routes *r, size_t row)
{
    naive_row out;
    naive_scores(&out, r->logits + row * (size_t)r->n_experts, r->bias, r->n_experts);
    for (int k = 0; k < r->top_k; k++) {
        out.id[k] = r->ids[row * (size_t)r->top_k + (size_t)k];
        out.w[k] = r->weights[row * (size_t)r->top_k + (size_t)k];
    }
    return out;
}

/* The whole run's rows in a layer, as the variant should have them. */
static void expect_rows(naive_row *rows, const fold_case *c, const exf_variant *v, int layer, int index)
{
    naive_layer prefill = naive_layer_of(&c->tables, index, v->prefill_projector, 0, v);
    naive_layer decode = naive_layer_of(&c->tables, index, v->decode_projector, v->decode_options.pool, v);
    if (v->prefill_frobenius) naive_by_frobenius(&prefill, &c->tables, index);
    if (v->decode_frobenius) naive_by_frobenius(&decode, &c->tables, index);
    int split = c->schedule.prefill_tokens;
    for (size_t s = 0; v->prefill != EXF_PREFILL_NONE && s < F_SEQUENCES; s++)
        for (int q = 0; q < c->span[s].n_tokens && (split == 0 || q < split); q++) {
            size_t row = c->span[s].offset + (size_t)q;
            naive_prefill(&rows[row], &prefill, v, layer, row * (size_t)c->arch.top_k);
        }
    for (int batch = 0; v->decode != EXF_DECODE_NONE && batch < 2; batch++) /* sequences 0, 1 and 2, 3 */
        for (int q = split; q < 70; q++) {
            naive_row step[2];
            size_t at[2], slot[2];
            int n = 0;
            for (int s = 2 * batch; s < 2 * batch + 2; s++)
                if (q < c->span[s].n_tokens) {
                    at[n] = c->span[s].offset + (size_t)q;
                    step[n] = rows[at[n]];
                    slot[n] = at[n] * (size_t)c->arch.top_k;
                    n++;
                }
            naive_decode(step, n, &decode, v, layer, slot);
            for (int i = 0; i < n; i++) rows[at[i]] = step[i];
        }
}

static void assert_rows(const exf_routes *r, const naive_row *want, const char *text)
{
    for (size_t i = 0; i < F_TOKENS * (size_t)r->top_k; i++) {
        const naive_row *row = &want[i / (size_t)r->top_k];
        size_t k = i % (size_t)r->top_k;
        ck_assert_msg(r->ids[i] == row->id[k], "%s, %d of %d: layer %d, row %zu, slot %zu: expert %d, expected %d", text, r->top_k,
                      r->n_experts, r->layer, i / (size_t)r->top_k, k, (int)r->ids[i], row->id[k]);
        ck_assert_msg(fabs((double)r->weights[i] - row->w[k]) <= 1e-5 * (fabs(row->w[k]) + 1e-2),
                      "%s, %d of %d: layer %d, row %zu, slot %zu: weight %.9g, expected %.9g", text, r->top_k, r->n_experts,
                      r->layer, i / (size_t)r->top_k, k, (double)r->weights[i], row->w[k]);
    }
}

static void check_layer(const fold_case *c, exf_fold_rewriter *f, const exf_variant *v, int layer, int index)
{
    naive_row want[F_TOKENS];
    exf_routes r = f_routes(c, layer);
    for (size_t i = 0; i < F_TOKENS; i++) want[i] = row_of(&r, i);
    if (index >= 0) expect_rows(want, c, v, layer, index);
    f_rewrite(f, &r);
    assert_rows(&r, want, v->name);
    f_free_routes(&r);
}

/* Positions below 0 (all are both), 2, 3 and 1000 (all are prefill) are prefill. */
static void check_text(const fold_case *c, const char *text)
{
    exf_err err;
    exf_variant v;
    ck_ok(exf_variant_parse(&v, text, &err), err);
    if (exf_variant_check(&v, c->arch.n_experts, c->arch.top_k, &err) != EXF_OK) return;
    exf_fold_rewriter *f = f_folder(c, &v, text);
    check_layer(c, f, &v, 1, 0);
    check_layer(c, f, &v, 2, -1); /* no tables, nothing folded */
    check_layer(c, f, &v, 3, 1);
    exf_fold_rewriter_free(f);
}

START_TEST(variants_agree_with_the_formulas)
{
    static const int splits[] = {0, 2, 3, 1000};
    for (int size = 0; size < SIZES; size++)
        for (size_t s = 0; s < sizeof splits / sizeof *splits; s++) {
            fold_case c;
            fold_open(&c, sizes[size].n_experts, sizes[size].top_k, splits[s], 1);
            check_text(&c, texts[_i]);
            fold_close(&c);
        }
}
END_TEST

/* Each of the variants above fits one of the sizes, or it was never looked at. */
START_TEST(no_variant_was_passed_over)
{
    for (int i = 0; i < TEXTS; i++) {
        exf_err err;
        exf_variant v;
        ck_ok(exf_variant_parse(&v, texts[i], &err), err);
        ck_ok(exf_variant_check(&v, 8, 4, &err), err);
    }
}
END_TEST

/* Slots without an expert and experts that repeat, as a fold before this one leaves them. */
START_TEST(odd_rows_agree_with_the_formulas)
{
    fold_case c;
    fold_open(&c, 8, 4, 0, 1);
    for (size_t row = 0; row < F_TOKENS; row++) {
        if (row % 4 == 0) c.ids[row * 4 + row / 4 % 4] = -1;
        if (row % 9 == 1)
            for (size_t k = 1; k < 4; k++) c.ids[row * 4 + k] = -1;
        if (row % 11 == 2)
            for (size_t k = 0; k < 4; k++) c.ids[row * 4 + k] = -1;
    }
    check_text(&c, texts[_i]);
    fold_close(&c);
}
END_TEST

/* ---- threads, seeds, layers ------------------------------------------------------------ */

static exf_routes rewritten(const fold_case *c, const char *text, int layer, int by_token)
{
    exf_variant v;
    exf_fold_rewriter *f = f_folder(c, &v, text);
    exf_routes r = f_routes(c, layer);
    r.by_token = by_token;
    f_rewrite(f, &r);
    exf_fold_rewriter_free(f);
    return r;
}

static int same_routes(const exf_routes *a, const exf_routes *b)
{
    size_t n = F_TOKENS * (size_t)a->top_k;
    return memcmp(a->ids, b->ids, n * sizeof *a->ids) == 0 && memcmp(a->weights, b->weights, n * sizeof *a->weights) == 0;
}

START_TEST(threads_change_no_bit)
{
    for (int i = 0; i < TEXTS; i++) {
        fold_case one, two;
        fold_open(&one, 8, 4, i % 2 ? 2 : 0, 1);
        fold_open(&two, 8, 4, i % 2 ? 2 : 0, 2);
        exf_routes a = rewritten(&one, texts[i], 3, 0), b = rewritten(&two, texts[i], 3, 0);
        ck_assert_msg(same_routes(&a, &b), "%s: two threads give other bits", texts[i]);
        f_free_routes(&a);
        f_free_routes(&b);
        fold_close(&one);
        fold_close(&two);
    }
}
END_TEST

START_TEST(one_layer_may_fold_alone)
{
    fold_case c;
    fold_open(&c, 8, 4, 0, 1);
    for (int layer = 1; layer < 4; layer += 2) {
        exf_routes alone = rewritten(&c, "P2:projector=joint,layer=3", layer, 0), plain = f_routes(&c, layer),
                   all = rewritten(&c, "P2:projector=joint", layer, 0);
        ck_assert_int_eq(same_routes(&alone, &plain), layer == 1);
        ck_assert_int_eq(same_routes(&alone, &all), layer == 3);
        f_free_routes(&alone);
        f_free_routes(&plain);
        f_free_routes(&all);
    }
    fold_close(&c);
}
END_TEST

START_TEST(random_depends_on_seed_and_layer_alone)
{
    fold_case c;
    fold_open(&c, 8, 4, 0, 1);
    exf_routes a = rewritten(&c, "random2", 1, 0), again = rewritten(&c, "random2", 1, 0),
               other = rewritten(&c, "random2:seed=2", 1, 0);
    exf_routes named = rewritten(&c, "random2:seed=1", 1, 0), pair = rewritten(&c, "P2", 1, 0);
    ck_assert(same_routes(&a, &again));
    ck_assert(same_routes(&a, &named)); /* the default */
    ck_assert(!same_routes(&a, &other));
    ck_assert_mem_eq(a.ids, pair.ids, F_TOKENS * 4 * sizeof *a.ids); /* the same are kept, whoever is the target */
    ck_assert_mem_eq(a.ids, other.ids, F_TOKENS * 4 * sizeof *a.ids);
    ck_assert(!same_routes(&a, &pair));
    f_free_routes(&a);
    f_free_routes(&again);
    f_free_routes(&other);
    f_free_routes(&named);
    f_free_routes(&pair);
    fold_close(&c);
}
END_TEST

/* A rank's rows begin somewhere in the run: its draws are those of one process. */
START_TEST(random_depends_on_the_row_in_the_run)
{
    static const char *const random[] = {"random2", "D2:fold=random"};
    for (int i = 0; i < 2; i++) {
        fold_case c;
        fold_open(&c, 8, 4, 0, 1);
        size_t row = c.span[2].offset, n = F_TOKENS - row; /* sequences 2 and 3 are a decode batch */
        exf_routes whole = rewritten(&c, random[i], 1, 0);
        exf_span span[2] = {{0, c.span[2].n_tokens}, {(size_t)c.span[2].n_tokens, c.span[3].n_tokens}};
        exf_batch batch = {.span = span, .n_sequences = 2, .n_tokens = n, .max_tokens = c.batch.max_tokens};
        exf_decode_schedule part;
        exf_variant v;
        exf_err err;
        exf_fold_rewriter *f;
        ck_ok(exf_decode_schedule_new(&part, &batch, 2, 0, 1, &err), err);
        ck_ok(exf_variant_parse(&v, random[i], &err), err);
        for (int same = 0; same < 2; same++) {
            exf_routes r = f_routes(&c, 1), of_part = r;
            part.first_row = same ? row : 0;
            of_part.batch = &batch;
            of_part.ids += row * 4;
            of_part.weights += row * 4;
            ck_ok(exf_fold_rewriter_new(&f, &v, &c.tables, &c.arch, &part, &err), err);
            f_rewrite(f, &of_part);
            ck_assert_int_eq(memcmp(of_part.weights, whole.weights + row * 4, n * 4 * sizeof *r.weights) == 0, same);
            exf_fold_rewriter_free(f);
            f_free_routes(&r);
        }
        exf_decode_schedule_free(&part);
        f_free_routes(&whole);
        fold_close(&c);
    }
}
END_TEST

START_TEST(layers_that_choose_by_token_are_left_alone)
{
    fold_case c;
    fold_open(&c, 8, 4, 0, 1);
    for (int i = 0; i < TEXTS; i++) {
        exf_routes plain = f_routes(&c, 4), hashed = rewritten(&c, texts[i], 4, 1), scored = rewritten(&c, texts[i], 4, 0);
        ck_assert_msg(same_routes(&plain, &hashed), "%s folds a layer that chooses by token", texts[i]);
        ck_assert_msg(!same_routes(&plain, &scored) || strstr(texts[i], "rho=0.99") || strstr(texts[i], "rho=1"),
                      "%s changes nothing", texts[i]);
        f_free_routes(&plain);
        f_free_routes(&hashed);
        f_free_routes(&scored);
    }
    fold_close(&c);
}
END_TEST

/* By a runtime that folds them, as if a score had chosen. */
START_TEST(layers_that_choose_by_token_are_folded_for_a_runtime_that_does)
{
    fold_case c;
    exf_err err;
    exf_variant v;
    exf_fold_rewriter *f;
    fold_open(&c, 8, 4, 0, 1);
    ck_ok(exf_variant_parse_on(exf_runtime_find("vllm-deepseek-v4"), &v, "P2+D3", &err), err);
    ck_ok(exf_fold_rewriter_new(&f, &v, &c.tables, &c.arch, &c.schedule, &err), err);
    exf_routes hashed = f_routes(&c, 4), plain = f_routes(&c, 4), scored = f_routes(&c, 4);
    hashed.by_token = 1;
    f_rewrite(f, &hashed);
    f_rewrite(f, &scored);
    ck_assert(!same_routes(&hashed, &plain));
    ck_assert(same_routes(&hashed, &scored));
    f_free_routes(&hashed);
    f_free_routes(&plain);
    f_free_routes(&scored);
    exf_fold_rewriter_free(f);
    fold_close(&c);
}
END_TEST

/* ---- the threshold of sere, seen by itself ----------------------------------------------- */

START_TEST(sere_moves_what_is_as_similar_as_rho)
{
    fold_case c;
    fold_open(&c, 5, 2, 0, 1);
    for (size_t i = 0; i < F_TOKENS; i++) { /* alone in its step from position 3 on: 1 is primary, 4 is not */
        c.ids[2 * i] = 1;
        c.ids[2 * i + 1] = 4;
    }
    c.tables.similarity[4 * 5 + 1] = 0.625f;
    exf_routes at = rewritten(&c, "sere1:rho=0.625", 1, 0), above = rewritten(&c, "sere1:rho=0.626", 1, 0),
               all = rewritten(&c, "sere2", 1, 0);
    for (size_t i = 0; i < F_TOKENS; i++) {
        ck_assert_int_eq(at.ids[2 * i + 1], 1); /* rho itself is enough */
        ck_assert_int_eq(above.ids[2 * i + 1], 4);
        ck_assert_int_eq(all.ids[2 * i + 1], 4); /* primary itself */
        ck_assert(at.weights[2 * i + 1] == c.weights[2 * i + 1]);
    }
    for (size_t k = 0; k < 2; k++) { /* without a threshold every route goes, however unlike its target is */
        c.tables.similarity[4 * 5 + 1] = k ? -0.5f : 0.0f;
        exf_routes unlike = rewritten(&c, "sere1", 1, 0);
        ck_assert_int_eq(unlike.ids[1], 1);
        f_free_routes(&unlike);
    }
    f_free_routes(&at);
    f_free_routes(&above);
    f_free_routes(&all);
    fold_close(&c);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, variants_agree_with_the_formulas, 0, TEXTS);
    tcase_add_loop_test(t, odd_rows_agree_with_the_formulas, 0, TEXTS);
    tcase_add_test(t, no_variant_was_passed_over);
    tcase_add_test(t, one_layer_may_fold_alone);
    tcase_add_test(t, threads_change_no_bit);
    tcase_add_test(t, random_depends_on_seed_and_layer_alone);
    tcase_add_test(t, random_depends_on_the_row_in_the_run);
    tcase_add_test(t, layers_that_choose_by_token_are_left_alone);
    tcase_add_test(t, layers_that_choose_by_token_are_folded_for_a_runtime_that_does);
    tcase_add_test(t, sere_moves_what_is_as_similar_as_rho);
}
