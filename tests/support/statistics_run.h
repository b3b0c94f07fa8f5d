/* statistics_run.h - a forward pass whose observer is the accumulator, for tests and
 * benchmarks: sequences are known, so sums over them are kept too. */
#ifndef EXF_TESTS_STATISTICS_RUN_H
#define EXF_TESTS_STATISTICS_RUN_H
#include "accumulate/accumulate.h"
#include "base/mem.h"
#include "tests/support/digest_fixtures.h"

/* What the accumulator is to do; common input leaves out layers that route by token id. */
static inline exf_code statistics_run_of(const exf_model *m, const exf_batch *batch, const exf_forward_options *o,
                                         const exf_accumulate_options *options, const char *target, exf_forward_report *report,
                                         exf_err *err)
{
    exf_accumulator *a = NULL;
    exf_provenance p = {0};
    exf_sequence_list sequences = {.n = 0};
    exf_code rc;
    int32_t layers[EXF_MAX_LAYERS];
    int n = 0;
    const exf_architecture *arch = &m->arch;
    exf_run_shape shape = {arch->n_experts, arch->top_k, arch->d_model, (int64_t)batch->n_sequences, (int64_t)batch->n_tokens};
    char digest[EXF_SHA256_HEX];
    exf_facts_part part = {.path = "run", .provenance = &p, .sequences = &sequences};
    exf_accumulator_plan plan = {
        .target = target, .force = 1, .shape = &shape, .layer_number = layers, .parts = &part, .n_parts = 1, .options = options};
    for (int l = 0; l < arch->n_layers; l++)
        if (arch->is_moe[l] && !(options->common_input_tokens && exf_model_copies(m, EXF_W_ROUTER_TABLE, l))) layers[n++] = l;
    plan.n_layers = n;
    EXF_TRY(exf_sequence_list_new(&sequences, batch->n_sequences, err));
    for (size_t i = 0; i < batch->n_sequences; i++) {
        sequences.length[i] = batch->span[i].n_tokens;
        EXF_TRY(exf_sequence_sha256(sequences.sha256[i], batch->ids + batch->span[i].offset, batch->span[i].n_tokens, err));
    }
    EXF_TRY(exf_provenance_add(&p, err, "data.sequences", "%zu", batch->n_sequences));
    EXF_TRY(exf_provenance_add(&p, err, "data.tokens", "%zu", batch->n_tokens));
    EXF_TRY(exf_accumulator_new(&a, &plan, err));
    exf_lane lane = {.observer = exf_accumulator_observer(a)};
    EXF_TRY(exf_forward(m, batch, &lane, 1, o, report, err));
    EXF_TRY(exf_accumulator_commit(a, digest, err));
    if (target) rc = same_digest(target, digest, err);
out:
    exf_accumulator_free(a);
    exf_sequence_list_free(&sequences);
    exf_provenance_free(&p);
    return rc;
}

static inline exf_code statistics_run(const exf_model *m, const exf_batch *batch, const exf_forward_options *o, const char *target,
                                      exf_forward_report *report, exf_err *err)
{
    exf_accumulate_options options = {.weighting = EXF_WEIGHT_SOURCE_NORM};
    return statistics_run_of(m, batch, o, &options, target, report, err);
}
#endif
