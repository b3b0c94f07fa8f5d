/* accumulate_captures.c - makes statistics from capture files (exf_accumulate_captures): shows an accumulator the blocks of
 * a forward pass again, layer by layer, file by file. */
#include "accumulate/accumulate_internal.h"

#include "base/err.h"
#include "base/mem.h"

#include <string.h>

/* The files, and buffers for a block of theirs. */
typedef struct {
    exf_capture_file *file;
    size_t n_files;
    exf_facts_part *part;
    int32_t *ids;
    float *weights, *outputs;
    double *stream_sq;
} captures;

/* Joins the files' shapes: all must have the first one's experts, sizes and layers; tokens add up. */
static exf_code join_shapes(const captures *c, exf_run_shape *shape, exf_err *err)
{
    const exf_capture_file *first = &c->file[0];
    *shape = first->shape;
    for (size_t i = 1; i < c->n_files; i++) {
        const exf_capture_file *f = &c->file[i];
        exf_code rc = exf_facts_same_sizes(exf_h5_path(f->h), &f->shape, exf_h5_path(first->h), &first->shape, err);
        if (rc != EXF_OK) return rc;
        if (f->n_layers != first->n_layers ||
            memcmp(f->layer_number, first->layer_number, (size_t)f->n_layers * sizeof *f->layer_number))
            return exf_fail(err, EXF_MODEL, "%s: captured other layers than %s", exf_h5_path(f->h), exf_h5_path(first->h));
        shape->n_sequences += f->shape.n_sequences;
        shape->n_tokens += f->shape.n_tokens;
    }
    return EXF_OK;
}

/* ---- showing blocks ---------------------------------------------------------------- */

/* What is shown next, and to whom. */
typedef struct {
    const exf_observer *observer;
    captures *c;
    int layer, moe_index, sweep;
    size_t sequence, row; /* row: in the whole run */
} show;

/* Shows rows [at, at + n) of a file, which begin `position` tokens into their sequence. */
static exf_code show_rows(show *s, exf_capture_file *f, int64_t at, int position, int n, exf_err *err)
{
    captures *c = s->c;
    exf_moe_block b = {.layer = s->layer, .moe_index = s->moe_index, .sequence = s->sequence, .row = s->row + (size_t)at,
                       .position = position, .n_tokens = n, .n_experts = (int)f->shape.n_experts, .top_k = (int)f->shape.top_k,
                       .d_model = (int)f->shape.d_model, .sweep = s->sweep, .router_ids = c->ids, .router_weights = c->weights,
                       .topk_ids = c->ids, .topk_weights = c->weights, .expert_outputs = c->outputs};
    if (f->has_stream && s->sweep == s->observer->sweeps - 1) b.stream_sq = c->stream_sq;
    exf_code rc;
    EXF_TRY(exf_stop_check(err));
    EXF_TRY(exf_capture_get(f, s->layer, at, n, c->ids, c->weights, c->outputs, err));
    if (b.stream_sq) EXF_TRY(exf_capture_get_stream(f, s->layer, at, n, c->stream_sq, err));
    rc = s->observer->block(s->observer->self, &b, err);
    exf_progress_add(n);
    if (rc != EXF_OK) exf_err_prefix(err, "%s: layer %d, rows from %lld: ", exf_h5_path(f->h), s->layer, (long long)at);
out:
    return rc;
}

/* Shows a file sequence by sequence or, if sequences are unknown, all rows as one. */
static exf_code show_file(show *s, exf_capture_file *f, exf_err *err)
{
    size_t n = f->sequences.length ? f->sequences.n : 1;
    int64_t first = 0;
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < n; i++, s->sequence++) {
        int64_t length = f->sequences.length ? f->sequences.length[i] : f->shape.n_tokens;
        for (int64_t k = 0; rc == EXF_OK && k < length; k += EXF_MOE_BLOCK)
            rc = show_rows(s, f, first + k, (int)k, (int)(length - k < EXF_MOE_BLOCK ? length - k : EXF_MOE_BLOCK), err);
        first += length;
    }
    s->row += (size_t)f->shape.n_tokens;
    return exf_capture_blame(f, s->layer, rc, err);
}

static exf_code tell(const show *s, exf_moment_kind at, exf_progress *progress, exf_err *err)
{
    exf_moment m = {.at = at, .layer = s->layer, .moe_index = s->moe_index, .sweep = s->sweep, .progress = progress};
    return exf_observer_tell(s->observer, &m, err);
}

static exf_code show_layers(captures *c, const exf_observer *o, exf_err *err)
{
    exf_code rc;
    const exf_capture_file *first = &c->file[0];
    uint64_t tokens = 0;
    for (size_t k = 0; k < c->n_files; k++) tokens += (uint64_t)c->file[k].shape.n_tokens;
    exf_eta work = {.kind = {{.planned = (double)tokens * first->n_layers * o->sweeps, .prior = 1e-6}}};
    exf_progress_begin("layer", first->n_layers, &work, 0);
    EXF_TRY(o->begin(o->self, 1, NULL, err));
    for (int i = 0; i < first->n_layers; i++) {
        double start = exf_clock();
        int layer = first->layer_number[i];
        show s = {.observer = o, .c = c, .layer = layer, .moe_index = i};
        exf_progress progress = {.layer = layer, .n_layers = first->n_layers, .done = i + 1,
                                 .n_experts = (int)first->shape.n_experts, .tokens = tokens};
        EXF_TRY(tell(&s, EXF_AT_LAYER_BEGIN, NULL, err));
        for (s.sweep = 0; s.sweep < o->sweeps; s.sweep++) {
            s.sequence = s.row = 0;
            for (size_t k = 0; k < c->n_files; k++) EXF_TRY(show_file(&s, &c->file[k], err));
            EXF_TRY(tell(&s, EXF_AT_SWEEP_END, NULL, err));
        }
        EXF_TRY(tell(&s, EXF_AT_LAYER_END, &progress, err));
        progress.seconds = exf_clock() - start;
        exf_progress_layer(&progress);
    }
out:
    exf_progress_end();
    return rc;
}

exf_code exf_accumulate_captures(const char *const *paths, size_t n_paths, const char *target, int force,
                                 const exf_accumulate_options *o, char digest[EXF_SHA256_HEX], exf_err *err)
{
    exf_code rc;
    captures c = {.n_files = n_paths};
    size_t n_open = 0;
    exf_run_shape shape;
    exf_accumulator *a = NULL;
    exf_accumulate_options on_cpu = *o;
    on_cpu.cross_check = 0; /* the sums are the CPU's, wherever the outputs were made */
    if (o->common_input_tokens)
        return exf_fail(
            err, EXF_USAGE,
            "calibrate.pairs: common_input: a capture holds no expert that a token was not routed to; use exfold-calibrate");
    if (o->norm_head)
        return exf_fail(err, EXF_USAGE, "calibrate.norm_head: %d, but a capture holds no inputs of experts; use exfold-calibrate",
                        o->norm_head);
    EXF_TRY(exf_mem_new(&c.file, n_paths, sizeof *c.file, "capture list", err));
    EXF_TRY(exf_mem_new(&c.part, n_paths, sizeof *c.part, "capture list", err));
    for (; n_open < n_paths; n_open++) {
        exf_capture_file *f = &c.file[n_open];
        EXF_TRY(exf_capture_open(f, paths[n_open], err));
        c.part[n_open] = (exf_facts_part){.path = paths[n_open], .provenance = &f->provenance, .sequences = &f->sequences};
    }
    size_t slots = (size_t)EXF_MOE_BLOCK * (size_t)c.file[0].shape.top_k, floats;
    EXF_TRY(exf_mem_mul(&floats, slots, (size_t)c.file[0].shape.d_model, "captured outputs", err));
    EXF_TRY(exf_mem_new(&c.ids, slots, sizeof *c.ids, "captured routes", err));
    EXF_TRY(exf_mem_new(&c.weights, slots, sizeof *c.weights, "captured routes", err));
    EXF_TRY(exf_mem_new(&c.stream_sq, (size_t)EXF_MOE_BLOCK, sizeof *c.stream_sq, "captured energies", err));
    EXF_TRY(exf_mem_new(&c.outputs, floats, sizeof *c.outputs, "captured outputs", err));
    EXF_TRY(exf_shards_check(c.part, n_paths, o->partial, err));
    EXF_TRY(join_shapes(&c, &shape, err));
    exf_accumulator_plan plan = {.target = target, .force = force, .shape = &shape, .layer_number = c.file[0].layer_number,
                                 .n_layers = c.file[0].n_layers, .parts = c.part, .n_parts = n_paths, .options = &on_cpu};
    EXF_TRY(exf_accumulator_new(&a, &plan, err));
    EXF_TRY(show_layers(&c, exf_accumulator_observer(a), err));
    EXF_TRY(exf_accumulator_commit(a, digest, err));
out:
    exf_accumulator_free(a);
    for (size_t i = 0; i < n_open; i++) exf_capture_close(&c.file[i]);
    exf_mem_free(c.part);
    exf_mem_free(c.file);
    exf_mem_free(c.ids);
    exf_mem_free(c.weights);
    exf_mem_free(c.stream_sq);
    exf_mem_free(c.outputs);
    return rc;
}
