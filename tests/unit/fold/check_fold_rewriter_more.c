/* check_fold_rewriter_more.c - what a fold rewriter is beside rewritten routes: vectors added to the
 * routed output, retained experts, the expert usage, refusals. */
#include "tests/support/fold_fixtures.h"

#include "fold/fold_rewriter_internal.h"
#include "kernels/fold/fold_internal.h"

/* ---- vectors ------------------------------------------------------------------------- */

/* d * v or S v + (v Q) C of one omitted route, times w, added to y; the scalar alone where the pair has no vectors. */
static void add_projected(double *y, const exf_tables *t, const exf_variant *v, int index, int s, int target, double w,
                          const float *out)
{
    const exf_vectors *x = &t->vectors;
    size_t e = (size_t)t->shape.n_experts;
    int64_t pair = 0;
    double scalar = (double)t->coeff[((size_t)index * e + (size_t)s) * e + (size_t)target];
    while (pair < x->n_pairs && !(x->pair[3 * pair] == index && x->pair[3 * pair + 1] == s && x->pair[3 * pair + 2] == target))
        pair++;
    int has = pair < x->n_pairs, diagonal = strcmp(v->prefill_projector->name, "diagonal") == 0;
    for (int i = 0; i < F_H; i++)
        y[i] += w * (double)out[i] * (has && diagonal ? (double)exf_vectors_data(x, "diagonal", 0)[pair * F_H + i] : scalar);
    if (!has || diagonal) return;
    int rank = v->prefill_lowrank;
    const float *c = exf_vectors_data(x, "lowrank", rank), *basis = exf_vectors_data(x, "basis", 0);
    for (int r = 0; r < rank; r++) {
        double z = 0;
        for (int i = 0; i < F_H; i++) z += (double)out[i] * (double)basis[((size_t)index * F_H + (size_t)i) * F_BASIS + (size_t)r];
        for (int i = 0; i < F_H; i++) y[i] += w * z * (double)c[((size_t)pair * (size_t)rank + (size_t)r) * F_H + (size_t)i];
    }
}

/* What a token's omitted routes add. */
static void naive_correction(double *y, const fold_case *c, const exf_variant *v, int index, size_t row, const float *outputs)
{
    naive_layer l = naive_layer_of(&c->tables, index, v->prefill_projector, 0, v);
    naive_row in;
    for (int k = 0; k < l.top_k; k++) {
        in.id[k] = c->ids[row * (size_t)l.top_k + (size_t)k];
        in.w[k] = c->weights[row * (size_t)l.top_k + (size_t)k];
    }
    naive_row r = naive_ranked(&in, &l, v->prefill_options.rank);
    for (int j = v->prefill_options.keep; j < l.top_k; j++) {
        int to = -1;
        for (int i = 0; i < v->prefill_options.keep; i++) {
            double loss = l.loss[r.id[j]][r.id[i]];
            if (loss >= 1e30 || loss > naive_limit(v->prefill_options.max_loss)) continue;
            if (to < 0 || loss < l.loss[r.id[j]][r.id[to]]) to = i;
        }
        if (to >= 0)
            add_projected(y, &c->tables, v, index, r.id[j], r.id[to], r.w[j], outputs + (row * (size_t)l.top_k + (size_t)to) * F_H);
    }
}

/* A sequence's block, as the pass shows it to the rewriter. */
static exf_moe_block block_of(const fold_case *c, const exf_routes *after, int layer, size_t sequence, int from, int n,
                              const float *outputs)
{
    size_t row = c->span[sequence].offset + (size_t)from, k = (size_t)c->arch.top_k;
    return (exf_moe_block){.layer = layer, .moe_index = layer - 1, .sequence = sequence, .row = row, .position = from,
                           .n_tokens = n,
                           .n_experts = c->arch.n_experts, .top_k = c->arch.top_k, .d_model = F_H, .router_ids = c->ids + row * k,
                           .router_weights = c->weights + row * k, .topk_ids = after->ids + row * k,
                           .topk_weights = after->weights + row * k,
                           .expert_outputs = outputs + row * k * F_H};
}

static void check_corrections(const fold_case *c, const char *text, int layer, int index)
{
    exf_variant v;
    exf_err err;
    exf_fold_rewriter *f = f_folder(c, &v, text);
    const exf_rewriter *w = exf_fold_rewriter_callbacks(f);
    exf_routes after = f_routes(c, layer);
    size_t k = (size_t)c->arch.top_k;
    float *outputs = naive_numbers(F_TOKENS * k * F_H, 81, 1), *routed = naive_numbers(F_TOKENS * F_H, 82, 1);
    double *want = naive_widened(routed, F_TOKENS * F_H);
    ck_assert(w->correct != NULL);
    f_rewrite(f, &after);
    for (size_t s = 0; s < F_SEQUENCES; s++)
        for (int at = 0; at < c->span[s].n_tokens; at += 32) { /* blocks that begin before and after the split */
            int n = c->span[s].n_tokens - at < 32 ? c->span[s].n_tokens - at : 32;
            exf_moe_block b = block_of(c, &after, layer, s, at, n, outputs);
            ck_ok(w->correct(w->self, &b, routed + b.row * F_H, &err), err);
            for (int q = at; q < at + n; q++)
                if (index >= 0 && (c->schedule.prefill_tokens == 0 || q < c->schedule.prefill_tokens))
                    naive_correction(want + (b.row + (size_t)(q - at)) * F_H, c, &v, index, b.row + (size_t)(q - at), outputs);
        }
    for (size_t i = 0; i < F_TOKENS * F_H; i++)
        ck_assert_msg(fabs((double)routed[i] - want[i]) <= 1e-5 * (1 + fabs(want[i])), "%s: layer %d, row %zu: %.9g, expected %.9g",
                      text, layer, i / F_H, (double)routed[i], want[i]);
    exf_mem_free(outputs);
    exf_mem_free(routed);
    exf_mem_free(want);
    f_free_routes(&after);
    exf_fold_rewriter_free(f);
}

START_TEST(vectors_are_added_for_omitted_routes)
{
    static const char *const texts[] = {
        "P1:projector=diagonal", "P2:projector=diagonal,rank=norm", "P2:projector=diagonal,max_loss=0.4",
        "P1:projector=lowrank2", "P2:projector=lowrank3",           "P1:projector=lowrank3,rank=score,max_loss=0.6",
        "P4:projector=diagonal"};
    static const int splits[] = {0, 2, 40};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int s = 0; s < 3; s++) {
            fold_case c;
            fold_open(&c, 8, 4, splits[s], 1);
            check_corrections(&c, texts[i], 1, 0);
            check_corrections(&c, texts[i], 3, 1);
            check_corrections(&c, texts[i], 2, -1); /* no tables */
            fold_close(&c);
        }
}
END_TEST

START_TEST(only_vectors_are_corrected)
{
    static const char *const texts[] = {"P2", "P2:projector=joint", "top2", "random1", "D4", "D2:pool=static", "sere1", "reap4"};
    fold_case c;
    fold_open(&c, 8, 4, 0, 1);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        exf_variant v;
        exf_fold_rewriter *f = f_folder(&c, &v, texts[i]);
        ck_assert(exf_fold_rewriter_callbacks(f)->correct == NULL);
        ck_assert_int_eq(exf_variant_wants_vectors(&v), 0);
        exf_fold_rewriter_free(f);
    }
    ck_assert_int_eq(exf_variant_wants_vectors(NULL), 0);
    fold_close(&c);
}
END_TEST

/* ---- retained experts ------------------------------------------------------------------------- */

START_TEST(the_largest_contributions_survive)
{
    fold_case c;
    fold_open(&c, 8, 4, 0, 1);
    for (int e = 0; e < 8; e++) c.tables.contribution[8 + e] = e == 6 ? 0.9f : 0.5f; /* ties to the lower number */
    for (int d = 4; d <= 8; d++) {
        char text[8];
        exf_variant v;
        snprintf(text, sizeof text, "reap%d", d);
        exf_fold_rewriter *f = f_folder(&c, &v, text);
        const exf_rewriter *w = exf_fold_rewriter_callbacks(f);
        for (int index = 0; index < F_TABLES; index++) {
            const unsigned char *retained = w->retained_experts(w->self, f_numbers[index] - 1);
            const float *score = c.tables.contribution + index * 8;
            int n = 0;
            for (int e = 0; e < 8; e++) n += retained[e];
            ck_assert_int_eq(n, d);
            for (int a = 0; a < 8; a++)
                for (int b = 0; b < 8; b++)
                    if (retained[a] && !retained[b]) ck_assert(score[a] > score[b] || (score[a] == score[b] && a < b));
        }
        ck_assert_ptr_null(w->retained_experts(w->self, 1)); /* a layer without tables: all */
        exf_routes r = f_routes(&c, 1);
        f_rewrite(f, &r); /* the router has chosen among them already */
        ck_assert_mem_eq(r.ids, c.ids, F_TOKENS * 4 * sizeof *r.ids);
        ck_assert_mem_eq(r.weights, c.weights, F_TOKENS * 4 * sizeof *r.weights);
        f_free_routes(&r);
        exf_fold_rewriter_free(f);
    }
    exf_variant v;
    exf_fold_rewriter *plain = f_folder(&c, &v, "P2+D4");
    ck_assert(exf_fold_rewriter_callbacks(plain)->retained_experts == NULL);
    exf_fold_rewriter_free(plain);
    fold_close(&c);
}
END_TEST

/* ---- the expert usage -------------------------------------------------------------------------- */

static exf_expert_usage naive_census(const fold_case *c, const exf_routes *r)
{
    exf_expert_usage n = {.tokens = F_TOKENS};
    for (size_t row = 0; row < F_TOKENS; row++)
        for (int k = 0; k < r->top_k; k++) {
            const int32_t *ids = r->ids + row * (size_t)r->top_k;
            int fresh = ids[k] >= 0;
            for (int i = 0; i < k; i++) fresh &= ids[i] != ids[k];
            n.executed += (uint64_t)fresh;
        }
    for (int from = 0, size = c->schedule.size; from < F_SEQUENCES; from += size)
        for (int q = c->schedule.prefill_tokens; q < 70; q++) {
            int any = 0, seen[NAIVE_E] = {0};
            for (int s = from; s < from + size; s++)
                for (int k = 0; q < c->span[s].n_tokens && k < r->top_k; k++) {
                    int32_t id = r->ids[(c->span[s].offset + (size_t)q) * (size_t)r->top_k + (size_t)k];
                    any = 1;
                    if (id >= 0) seen[id] = 1;
                }
            for (int e = 0; e < r->n_experts; e++) n.distinct += (uint64_t)seen[e];
            n.steps += (uint64_t)any;
        }
    return n;
}

START_TEST(the_census_counts_what_runs)
{
    static const char *const texts[] = {"P1", "top2", "D2", "D3:pool=dynamic,fold=drop", "P2+D2", "sere1", "random2"};
    for (int split = 0; split < 4; split += 3) {
        fold_case c;
        fold_open(&c, 8, 4, split, 1);
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            exf_variant v;
            exf_fold_rewriter *f = f_folder(&c, &v, texts[i]);
            for (int layer = 1; layer < F_LAYERS; layer++) {
                exf_routes r = f_routes(&c, layer), probe = f_routes(&c, layer);
                f_rewrite(f, &r);
                probe.probe = 1; /* not the lane's own */
                f_rewrite(f, &probe);
                exf_expert_usage want = naive_census(&c, &r), *got = &(exf_expert_usage){0};
                *got = exf_fold_rewriter_usage(f)[layer - 1];
                ck_assert_msg(got->tokens == want.tokens && got->executed == want.executed && got->steps == want.steps &&
                                  got->distinct == want.distinct,
                              "%s: layer %d: %d tokens run %d, %d steps %d; expected %d, %d, %d, %d", texts[i], layer,
                              (int)got->tokens, (int)got->executed, (int)got->steps, (int)got->distinct, (int)want.tokens,
                              (int)want.executed, (int)want.steps, (int)want.distinct);
                f_free_routes(&r);
                f_free_routes(&probe);
            }
            exf_fold_rewriter_free(f);
        }
        fold_close(&c);
    }
}
END_TEST

/* variant NULL: nothing is changed, everything counted; tables are not needed. */
START_TEST(no_variant_only_counts)
{
    fold_case c;
    exf_err err;
    exf_fold_rewriter *f;
    fold_open(&c, 7, 3, 0, 1);
    for (int with = 0; with < 2; with++) {
        ck_ok(exf_fold_rewriter_new(&f, NULL, with ? &c.tables : NULL, &c.arch, &c.schedule, &err), err);
        exf_routes r = f_routes(&c, 3);
        f_rewrite(f, &r);
        f_rewrite(f, &r); /* calls add up */
        exf_expert_usage want = naive_census(&c, &r), got = exf_fold_rewriter_usage(f)[2];
        ck_assert_mem_eq(r.ids, c.ids, F_TOKENS * 3 * sizeof *r.ids);
        ck_assert(got.tokens == 2 * want.tokens && got.executed == 2 * want.executed && got.steps == 2 * want.steps &&
                  got.distinct == 2 * want.distinct);
        ck_assert_uint_eq(got.executed, 2 * 3 * F_TOKENS);
        ck_assert_uint_eq(exf_fold_rewriter_usage(f)[0].tokens, 0);
        f_free_routes(&r);
        exf_fold_rewriter_free(f);
    }
    exf_fold_rewriter_free(NULL);
    fold_close(&c);
}
END_TEST

/* The original counts the steps of batches of every size. */
START_TEST(steps_of_several_sizes_are_counted)
{
    static const int sizes[] = {1, 2, 4};
    fold_case c;
    exf_err err;
    exf_fold_rewriter *f;
    exf_decode_schedule schedule[3], own;
    fold_open(&c, 7, 3, 0, 1);
    own = c.schedule;
    for (int i = 0; i < 3; i++) ck_ok(exf_decode_schedule_new(&schedule[i], &c.batch, sizes[i], 0, 1, &err), err);
    ck_ok(exf_fold_rewriter_new(&f, NULL, NULL, &c.arch, &schedule[0], &err), err);
    ck_ok(exf_fold_rewriter_count(f, schedule, 3, &err), err);
    exf_routes r = f_routes(&c, 3);
    f_rewrite(f, &r);
    for (int i = 0; i < 3; i++) {
        c.schedule = schedule[i];
        exf_expert_usage want = naive_census(&c, &r), got = exf_fold_rewriter_usage(f)[i * c.arch.n_moe_layers + 2];
        ck_assert(memcmp(&got, &want, sizeof got) == 0);
        ck_assert_uint_eq(got.steps, sizes[i] == 1 ? F_TOKENS : sizes[i] == 2 ? 110 : 70);
    }
    exf_expert_usage set = {1, 2, 3, 4};
    exf_fold_rewriter_set_usage(f, 1, &set, 1);
    ck_assert(memcmp(&exf_fold_rewriter_usage(f)[c.arch.n_moe_layers], &set, sizeof set) == 0);
    ck_assert_uint_eq(exf_fold_rewriter_usage(f)[0].tokens, 0);
    exf_fold_rewriter_free(f);
    f_free_routes(&r);
    for (int i = 0; i < 3; i++) exf_decode_schedule_free(&schedule[i]);
    c.schedule = own;
    fold_close(&c);
}
END_TEST

/* ---- refusals ------------------------------------------------------------------------------ */

static void refused(const fold_case *c, const char *text, exf_code code, const char *says)
{
    exf_err err;
    exf_variant v;
    exf_fold_rewriter *f;
    ck_ok(exf_variant_parse(&v, text, &err), err);
    ck_fails(exf_fold_rewriter_new(&f, &v, &c->tables, &c->arch, &c->schedule, &err), code, err, says);
    ck_assert_ptr_null(f);
}

static void forget(float **table)
{
    exf_mem_free(*table);
    *table = NULL;
}

static void forget_array(exf_vectors *v, const char *name)
{
    int i = 0;
    while (i < v->n_arrays && strcmp(v->array[i].stored->name, name) != 0) i++;
    ck_assert_int_lt(i, v->n_arrays);
    exf_mem_free(v->array[i].data);
    for (v->n_arrays--; i < v->n_arrays; i++) v->array[i] = v->array[i + 1];
}

START_TEST(what_the_tables_lack_is_named)
{
    fold_case c;
    fold_open(&c, 8, 4, 0, 1);
    refused(&c, "P5", EXF_USAGE, "variant \"P5\" keeps 5 experts per token, the model runs 4");
    refused(&c, "D3:pool=static", EXF_USAGE,
            "variant \"D3:pool=static\": the tables hold no static pool of 3; add 3 to pools and solve them again");
    refused(&c, "D3:pool=static,by=reap", EXF_USAGE,
            "variant \"D3:pool=static,by=reap\": the tables hold no static pool of 3 by reap; add {size: 3, by: reap} to pools and "
            "solve them again (exfold-solve)");
    refused(&c, "P2:layer=2", EXF_USAGE, "variant \"P2:layer=2\": the tables have no layer 2");
    c.tables.n_budgets = 1;
    refused(&c, "P2:budget=topp", EXF_USAGE,
            "variant \"P2:budget=topp\": the tables hold no budget of 2 experts per token by \"top_p\"; add 2 to budgets and solve "
            "them again (exfold-solve)");
    refused(&c, "P2:budget=token", EXF_USAGE, "hold no budget of 2 experts per token by \"stream\"");
    refused(&c, "skip1:tau=1,factor=output", EXF_USAGE,
            "variant \"skip1:tau=1,factor=output\": the tables hold no budget with the sensitivity \"output\"; add one to budgets "
            "and solve them again (exfold-solve)");
    c.tables.n_budgets = F_BUDGETS;
    refused(&c, "P2:projector=lowrank8", EXF_USAGE,
            "the tables hold no low-rank projector of rank 8; add lowrank to calibrate.projectors and 8 to calibrate.ranks");
    forget(&c.tables.cosine);
    refused(&c, "P2:projector=joint", EXF_USAGE,
            "variant \"P2:projector=joint\": the tables hold no cosine and rms, which came with version 2");
    refused(&c, "D2:projector=joint", EXF_USAGE, "hold no cosine and rms");
    forget(&c.tables.rms);
    refused(&c, "D2:rank=energy", EXF_USAGE, "hold no cosine and rms");
    forget(&c.tables.contribution);
    refused(&c, "reap4", EXF_USAGE, "variant \"reap4\": the tables hold no contribution, which came with version 2");
    exf_provenance_free(&c.tables.provenance); /* of co-routed tokens */
    refused(&c, "sere1", EXF_USAGE, "variant \"sere1\": common_input");
    forget(&c.tables.similarity);
    refused(&c, "sere1", EXF_USAGE, "variant \"sere1\": the tables hold no similarity, which came with version 2");
    forget_array(&c.tables.vectors, "diagonal");
    refused(&c, "P2:projector=diagonal", EXF_USAGE,
            "the tables hold no diagonal; add diagonal to calibrate.projectors and calibrate again");
    snprintf(c.tables.shared[1].name, sizeof c.tables.shared[1].name, "other");
    refused(
        &c, "P2:projector=layer", EXF_USAGE,
        "variant \"P2:projector=layer\": the tables hold no layer scalar; add layer to calibrate.projectors and solve them again");
    snprintf(c.tables.shared[0].name, sizeof c.tables.shared[0].name, "other");
    refused(&c, "D2:projector=global", EXF_USAGE, "the tables hold no global scalar");
    c.tables.layer_number[1] = 0;
    refused(&c, "P2", EXF_MODEL, "the tables have a layer 0; the model has 5 layers and that one is dense");
    c.tables.layer_number[1] = 5;
    refused(&c, "P2", EXF_MODEL, "the tables have a layer 5; the model has 5 layers and none of that number");
    fold_close(&c);
}
END_TEST

/* Vectors speak of what the kept routes' own slots hold: a decode fold of the same positions takes that away. */
START_TEST(vectors_and_a_decode_fold_need_a_split)
{
    static const char *const texts[] = {"P2:projector=diagonal+D2", "P2:projector=lowrank2+sere1",
                                        "P2:projector=diagonal+D2:pool=static"};
    fold_case c;
    fold_open(&c, 8, 4, 0, 1);
    for (int i = 0; i < 3; i++) refused(&c, texts[i], EXF_USAGE, "needs validate.prefill_tokens");
    exf_variant v;
    exf_fold_rewriter_free(f_folder(&c, &v, "P2:projector=diagonal+reap4")); /* the router's own choice */
    fold_close(&c);
    fold_open(&c, 8, 4, 3, 1);
    for (int i = 0; i < 3; i++) exf_fold_rewriter_free(f_folder(&c, &v, texts[i]));
    fold_close(&c);
}
END_TEST

/* ---- failures of a fold --------------------------------------------------------------------- */

/* What rewriting a layer of the case says once `f` has been opened. */
static void rewriting_fails(const fold_case *c, exf_fold_rewriter *f, exf_code code, const char *says)
{
    exf_err err;
    const exf_rewriter *w = exf_fold_rewriter_callbacks(f);
    exf_routes r = f_routes(c, 1);
    ck_fails(w->rewrite(w->self, &r, &err), code, err, says);
    ck_assert_msg(strstr(err.msg, "sequences of") == NULL, "%s", err.msg);
    f_free_routes(&r);
    exf_fold_rewriter_free(f);
}

START_TEST(a_contradiction_is_not_blamed_on_the_slots)
{
    fold_case c;
    exf_variant v;
    fold_open(&c, 8, 4, 0, 1);
    exf_fold_rewriter *f = f_folder(&c, &v, "P2");
    v.prefill_options.max_loss = NAN;
    rewriting_fails(
        &c, f, EXF_INTERNAL,
        "variant \"P2\": prefill folding refuses to keep 2 of 4 routes to 8 experts with rank 0, rescale 0, max_loss nan");
    f = f_folder(&c, &v, "P2:projector=joint");
    v.prefill_options.ridge = -2;
    rewriting_fails(&c, f, EXF_INTERNAL, "max_loss 1e+30, ridge -2");
    f = f_folder(&c, &v, "D3");
    v.decode_options.pool = 0;
    rewriting_fails(&c, f, EXF_INTERNAL,
                    "variant \"D3\": decode folding refuses a pool of 0 for 4 routes to 8 experts with rank 0");
    fold_close(&c);
}
END_TEST

START_TEST(each_status_names_what_it_means)
{
    fold_case c;
    exf_variant v;
    exf_err err;
    fold_open(&c, 8, 4, 0, 1);
    exf_fold_rewriter *f = f_folder(&c, &v, "P2+D3");
    ck_ok(exf_fold_failed(f, EXF_FOLD_OK, EXF_FOLD_PHASE_DECODE, &err), err);
    ck_fails(exf_fold_failed(f, EXF_FOLD_DEVICE, EXF_FOLD_PHASE_PREFILL, &err), EXF_DEVICE, err,
             "\"P2+D3\" CUDA");
    ck_fails(exf_fold_failed(f, EXF_FOLD_UNSUPPORTED, EXF_FOLD_PHASE_DECODE, &err), EXF_USAGE, err,
             "65536 2 4");
    c.arch.top_k = 17;
    ck_fails(exf_fold_failed(f, EXF_FOLD_UNSUPPORTED, EXF_FOLD_PHASE_DECODE, &err), EXF_MODEL, err,
             "16 17");
    c.arch.n_experts = 513;
    ck_fails(exf_fold_failed(f, EXF_FOLD_UNSUPPORTED, EXF_FOLD_PHASE_PREFILL, &err), EXF_MODEL, err,
             "3 512 513");
    exf_fold_rewriter_free(f);
    fold_close(&c);
}
END_TEST

/* The limits that a variant is held to are the fold's own. */
START_TEST(variants_are_held_to_the_limits_of_the_fold)
{
    exf_variant v;
    exf_err err;
    char says[64];
    ck_ok(exf_variant_parse(&v, "P1", &err), err);
    ck_ok(exf_variant_check(&v, EXF_FOLD_MIN_E, 1, &err), err);
    ck_ok(exf_variant_check(&v, EXF_FOLD_MAX_E, EXF_FOLD_MAX_K, &err), err);
    snprintf(says, sizeof says, "%d to %d experts and at most %d per token", EXF_FOLD_MIN_E, EXF_FOLD_MAX_E, EXF_FOLD_MAX_K);
    ck_fails(exf_variant_check(&v, EXF_FOLD_MIN_E - 1, 1, &err), EXF_MODEL, err, says);
    ck_fails(exf_variant_check(&v, EXF_FOLD_MAX_E + 1, 1, &err), EXF_MODEL, err, says);
    ck_fails(exf_variant_check(&v, EXF_FOLD_MAX_E, EXF_FOLD_MAX_K + 1, &err), EXF_MODEL, err, says);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, vectors_are_added_for_omitted_routes);
    tcase_add_test(t, only_vectors_are_corrected);
    tcase_add_test(t, the_largest_contributions_survive);
    tcase_add_test(t, the_census_counts_what_runs);
    tcase_add_test(t, no_variant_only_counts);
    tcase_add_test(t, steps_of_several_sizes_are_counted);
    tcase_add_test(t, what_the_tables_lack_is_named);
    tcase_add_test(t, vectors_and_a_decode_fold_need_a_split);
    tcase_add_test(t, a_contradiction_is_not_blamed_on_the_slots);
    tcase_add_test(t, each_status_names_what_it_means);
    tcase_add_test(t, variants_are_held_to_the_limits_of_the_fold);
}
