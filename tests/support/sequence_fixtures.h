/* sequence_fixtures.h - what the tests of sums over sequences and of vector sums
 * share: routed tokens in sequences, shown as a forward pass shows them. */
#ifndef EXF_TESTS_SEQUENCE_FIXTURES_H
#define EXF_TESTS_SEQUENCE_FIXTURES_H
#include "tests/support/digest_fixtures.h"
#include "tests/support/layer_sums_fixtures.h"

#include "accumulate/accumulate.h"

#include <math.h>

enum { SEQ_E = 5, SEQ_K = 3, SEQ_H = 12, SEQ_N = 4, SEQ_T = 1300, SEQ_LAYER = 3 };

static const int32_t seq_length[SEQ_N] = {30, 7, 1241, 22}; /* one of them is more than a block */

/* n sequences from number `first`; borrowed, so that no failing allocation is this one. */
static inline exf_sequence_list seq_list(int first, int n)
{
    static exf_sequence_list all;
    exf_err e;
    if (!all.n) {
        ck_ok(exf_sequence_list_new(&all, SEQ_N, &e), e);
        for (int i = 0; i < SEQ_N; i++) {
            int32_t id[2] = {i, 77};
            all.length[i] = seq_length[i];
            ck_ok(exf_sequence_sha256(all.sha256[i], id, 2, &e), e);
        }
    }
    return (exf_sequence_list){.n = (size_t)n, .length = all.length + first, .sha256 = all.sha256 + first};
}

/* Borrowed too. */
static inline routed seq_tokens(void)
{
    static routed r;
    if (r.n) return r;
    r = routed_new(SEQ_T, SEQ_E, SEQ_K, SEQ_H, 41);
    for (int i = 0; i < SEQ_T * SEQ_K * SEQ_H; i++) /* experts are alike, or a scalar would explain nothing */
        r.outputs[i] = (float)(draw(42, i, 1 << 20) - (1 << 19)) / (1 << 19) +
                       (float)(draw(43, i / (SEQ_K * SEQ_H) * SEQ_H + i % SEQ_H, 1 << 20) - (1 << 19)) / (1 << 18);
    return r;
}

static inline exf_moe_block seq_block(const routed *r, size_t sequence, int row, int position, int n, int worker, int sweep)
{
    size_t slot = (size_t)row * SEQ_K;
    return (exf_moe_block){.layer = SEQ_LAYER, .sequence = sequence, .row = (size_t)row, .position = position, .n_tokens = n,
                           .n_experts = SEQ_E,
                           .top_k = SEQ_K, .d_model = SEQ_H, .worker = worker, .sweep = sweep, .router_ids = r->ids + slot,
                           .router_weights = r->weights + slot, .topk_ids = r->ids + slot,
                           .topk_weights = r->weights + slot, .expert_outputs = r->outputs + slot * SEQ_H};
}

/* Sequence i of sequences [first, first + n) of the tokens, all its blocks. */
static inline exf_code seq_show_one(const exf_observer *o, const routed *r, int i, int row, int worker, int sweep, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int at = 0; rc == EXF_OK && at < seq_length[i]; at += EXF_MOE_BLOCK) {
        int n = seq_length[i] - at < EXF_MOE_BLOCK ? seq_length[i] - at : EXF_MOE_BLOCK;
        exf_moe_block b = seq_block(r, (size_t)i, row + at, at, n, worker, sweep);
        rc = o->block(o->self, &b, err);
    }
    return rc;
}

/* All sequences, on as many workers, the last first when `backward`. */
static inline exf_code seq_show(const exf_observer *o, const routed *r, int n_workers, int backward, exf_err *err)
{
    exf_progress progress = {.layer = SEQ_LAYER};
    exf_code rc;
    EXF_TRY(o->begin(o->self, n_workers, NULL, err));
    EXF_TRY(exf_observer_tell(o, &(exf_moment){.at = EXF_AT_LAYER_BEGIN, .layer = SEQ_LAYER}, err));
    for (int sweep = 0; sweep < o->sweeps; sweep++) {
        for (int k = 0; k < SEQ_N; k++) {
            int i = backward ? SEQ_N - 1 - k : k, row = 0;
            for (int j = 0; j < i; j++) row += seq_length[j];
            EXF_TRY(seq_show_one(o, r, i, row, (k + sweep) % n_workers, sweep, err));
        }
        EXF_TRY(exf_observer_tell(o, &(exf_moment){.at = EXF_AT_SWEEP_END, .layer = SEQ_LAYER, .sweep = sweep}, err));
    }
    EXF_TRY(exf_observer_tell(o, &(exf_moment){.at = EXF_AT_LAYER_END, .layer = SEQ_LAYER, .progress = &progress}, err));
out:
    return rc;
}

static const exf_accumulate_options seq_options = {.weighting = EXF_WEIGHT_SOURCE_NORM, .diagonal = 1, .lowrank = 1,
                                                   .vector_pairs = 8, .samples = 50, .seed = 1,
                                                   .route_sample = 90, .rule = {1e-3, 1, -4, 4}};

static char seq_digest[EXF_SHA256_HEX]; /* that the last accumulation gave */

static inline exf_code seq_accumulate(const char *name, const exf_accumulate_options *o, int n_workers, int backward, exf_err *err)
{
    static const int32_t number = SEQ_LAYER;
    exf_run_shape shape = {SEQ_E, SEQ_K, SEQ_H, SEQ_N, SEQ_T};
    exf_accumulator *a = NULL;
    exf_provenance p = {0};
    exf_sequence_list list = seq_list(0, SEQ_N);
    exf_facts_part part = {.path = "tokens", .provenance = &p, .sequences = &list};
    exf_accumulator_plan plan = {.target = exf_scratch(name), .force = 1, .shape = &shape, .layer_number = &number, .n_layers = 1,
                                 .parts = &part, .n_parts = 1, .options = o};
    routed r = seq_tokens();
    exf_code rc;
    EXF_TRY(exf_provenance_add(&p, err, "data.tokens_digest", "t"));
    EXF_TRY(exf_provenance_add(&p, err, "data.domains", "c: 4 sequences, 1300 tokens"));
    EXF_TRY(exf_accumulator_new(&a, &plan, err));
    EXF_TRY(seq_show(exf_accumulator_observer(a), &r, n_workers, backward, err));
    rc = exf_accumulator_commit(a, seq_digest, err);
out:
    exf_accumulator_free(a);
    exf_provenance_free(&p);
    return rc;
}
#endif
