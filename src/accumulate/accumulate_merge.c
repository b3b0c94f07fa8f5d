/* accumulate_merge.c - adds up statistics of different data (exf_merge_statistics). */
#include "accumulate/accumulate_internal.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"

#include <string.h>

typedef struct {
    exf_statistics_reader *file;
    exf_facts_part *part;
    char (*digest)[EXF_SHA256_HEX];
    size_t n;
    exf_run_shape shape;              /* shape of all files together */
    exf_sequence_list sequences;      /* sequences of all files, sorted */
    exf_provenance provenance, origin;
} merging;

/* ---- shapes ------------------------------------------------------------------------------ */

static exf_code check_shape(const exf_statistics_reader *a, const exf_statistics_reader *b, exf_err *err)
{
    exf_code rc = exf_facts_same_sizes(exf_h5_path(b->h), &b->shape, exf_h5_path(a->h), &a->shape, err);
    if (rc != EXF_OK) return rc;
    if (a->n_layers != b->n_layers || memcmp(a->layer_number, b->layer_number, (size_t)a->n_layers * sizeof *a->layer_number))
        return exf_fail(err, EXF_MODEL, "%s: holds other layers than %s", exf_h5_path(b->h), exf_h5_path(a->h));
    if (!a->sequences.length != !b->sequences.length)
        return exf_fail(err, EXF_MODEL, "%s: does not say which sequences it holds, %s does: accumulate its data again",
                        exf_h5_path(a->sequences.length ? b->h : a->h), exf_h5_path(a->sequences.length ? a->h : b->h));
    return EXF_OK;
}

/* Adds a file's tokens and sequences to those of the files before. */
static exf_code add_counts(merging *m, size_t i, exf_err *err)
{
    const exf_run_shape *own = &m->file[i].shape;
    int64_t most = EXF_MOST_COUNTED / own->top_k, tokens = m->shape.n_tokens, sequences = m->shape.n_sequences;
    if (own->n_tokens > most - tokens || own->n_sequences > EXF_MOST_COUNTED - sequences)
        return exf_fail(err, EXF_FORMAT,
                        "%s: %lld tokens of %lld sequences, the files before have %lld of %lld: more together than the %lld tokens "
                        "that are counted",
                        m->part[i].path, (long long)own->n_tokens, (long long)own->n_sequences, (long long)tokens,
                        (long long)sequences, (long long)most);
    m->shape.n_tokens += own->n_tokens;
    m->shape.n_sequences += own->n_sequences;
    return EXF_OK;
}

/* Allocates the sample of all files' tokens, as large as the sample that each file was to have. */
static exf_code make_sample(const merging *m, exf_route_sample *s, exf_err *err)
{
    const char *text = exf_provenance_get(&m->provenance, "accumulate.route_sample");
    int64_t tokens;
    if (!text) return EXF_OK;
    if (!exf_parse_i64(text, &tokens) || tokens < 1 || tokens > INT32_MAX)
        return exf_fail(err, EXF_FORMAT, "%s: provenance says accumulate.route_sample is %s, expected a number of tokens",
                        m->part[0].path, text);
    return exf_route_sample_new(s, (size_t)(tokens < m->shape.n_tokens ? tokens : m->shape.n_tokens), (int)m->shape.top_k, err);
}

/* ---- merging -------------------------------------------------------------------------------- */

static exf_code merge_layers(merging *m, exf_statistics_writer *w, exf_err *err)
{
    exf_layer_statistics sum = {.dot = NULL}, one = {.dot = NULL};
    exf_code rc;
    EXF_TRY(exf_layer_statistics_new(&sum, (int)m->shape.n_experts, err));
    EXF_TRY(make_sample(m, &sum.routes, err));
    EXF_TRY(exf_layer_statistics_new(&one, (int)m->shape.n_experts, err));
    for (int i = 0; i < m->file[0].n_layers; i++) {
        exf_layer_statistics_zero(&sum);
        for (size_t k = 0; k < m->n; k++) {
            EXF_TRY(exf_stop_check(err));
            EXF_TRY(exf_statistics_get(&m->file[k], i, &one, err));
            rc = exf_layer_statistics_merge(&sum, &one, err);
            if (rc != EXF_OK) {
                exf_err_prefix(err, "%s: layer %d, merged with the files before: ", m->part[k].path, m->file[0].layer_number[i]);
                goto out;
            }
        }
        EXF_TRY(exf_statistics_put(w, m->file[0].layer_number[i], &sum, err));
        EXF_TRY(exf_statistics_layer_done(w, m->file[0].layer_number[i], err));
    }
out:
    exf_layer_statistics_free(&sum);
    exf_layer_statistics_free(&one);
    return rc;
}

exf_code exf_merge_statistics(const char *const *paths, size_t n, const char *target, int force, int partial,
                              int other_weights, char digest[EXF_SHA256_HEX], exf_err *err)
{
    merging m = {.n = n};
    exf_statistics_writer w = {.h = NULL};
    exf_sequence_list all = {.n = 0};
    size_t n_open = 0;
    exf_code rc;
    EXF_TRY(exf_mem_new(&m.file, n, sizeof *m.file, "list of parts", err));
    EXF_TRY(exf_mem_new(&m.part, n, sizeof *m.part, "list of parts", err));
    EXF_TRY(exf_mem_new(&m.digest, n, sizeof *m.digest, "list of parts", err));
    for (; n_open < n; n_open++) {
        exf_statistics_reader *f = &m.file[n_open];
        EXF_TRY(exf_statistics_open(f, paths[n_open], err));
        m.part[n_open] = (exf_facts_part){paths[n_open], &f->provenance, &f->origin, &f->sequences, m.digest[n_open]};
    }
    for (size_t i = 0; i < n; i++) { /* sums over what all of a run's data chose */
        const char *vectors = exf_provenance_get(m.part[i].provenance, "accumulate.vectors");
        if (!vectors && !exf_provenance_get(m.part[i].provenance, EXF_NORM_HEAD_FACT)) continue;
        rc = exf_fail(err, EXF_MODEL, "%s: holds sums for %s, which add up within one run alone: make them on the ranks of one run "
                      "(mpirun -n N exfold-calibrate RECIPE), or in one exfold-accumulate over the captures of all parts",
                      paths[i], vectors ? vectors : "a norm head");
        goto out;
    }
    for (size_t i = 0; i < n; i++)
        EXF_TRY(exf_sums_check_version(&m.file[i].provenance, paths[i], m.file[i].shape.top_k, m.file[i].shape.d_model, err));
    for (size_t i = 0; i < n; i++) EXF_TRY(exf_h5_digest(m.file[i].h, m.digest[i], err));
    EXF_TRY(exf_shards_check(m.part, n, partial, err));
    m.shape = m.file[0].shape;
    EXF_TRY(exf_facts_join_sequences(&all, m.part, n, err));
    EXF_TRY(exf_sequence_list_sorted(&m.sequences, &all, err));
    EXF_TRY(exf_facts_join(&m.provenance, &m.origin, m.part, n, &m.sequences, other_weights, err));
    exf_statistics_header head = {.layer_number = m.file[0].layer_number, .n_layers = m.file[0].n_layers,
                                  .common_input = m.file[0].common_input, .sequences = &m.sequences, .provenance = &m.provenance,
                                  .origin = &m.origin};
    for (size_t i = 0; i < n; i++)
        for (int p = 0; p < EXF_PART_BARE; p++) head.lacks[p] |= !m.file[i].has[p];
    for (size_t i = 1; i < n; i++) {
        EXF_TRY(check_shape(&m.file[0], &m.file[i], err));
        EXF_TRY(add_counts(&m, i, err));
    }
    head.shape = m.shape;
    EXF_TRY(exf_statistics_start(&w, target, force, &head, err));
    EXF_TRY(merge_layers(&m, &w, err));
    rc = exf_statistics_commit(&w, digest, err);
out:
    exf_statistics_abort(&w);
    for (size_t i = 0; i < n_open; i++) exf_statistics_close(&m.file[i]);
    exf_mem_free(m.file);
    exf_mem_free(m.part);
    exf_mem_free(m.digest);
    exf_sequence_list_free(&all);
    exf_sequence_list_free(&m.sequences);
    exf_provenance_free(&m.provenance);
    exf_provenance_free(&m.origin);
    return rc;
}
