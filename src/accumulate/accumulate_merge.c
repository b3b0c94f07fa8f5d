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

/* ---- vector sums ------------------------------------------------------------------------ */

static exf_code check_vectors(const merging *m, const exf_vector_sums *a, const exf_vector_sums *b, size_t i, int layer,
                              exf_err *err)
{
    size_t pairs = 2 * (size_t)a->n_pairs * sizeof *a->pair, basis = (size_t)a->d_model * (size_t)a->rank * sizeof *a->basis;
    int over_basis = exf_provenance_get(&m->provenance, EXF_BASIS_FACT) != NULL;
    size_t grids = (size_t)a->n_pairs * EXF_N_GRIDS * sizeof *a->grid;
    const char *other = a->n_pairs != b->n_pairs || (a->n_pairs && memcmp(a->pair, b->pair, pairs) != 0) ? "vectors for other pairs"
                        : a->rank != b->rank || !a->vu != !b->vu || (a->basis && memcmp(a->basis, b->basis, basis) != 0)
                            ? "another low-rank basis"
                        : over_basis && a->grid && memcmp(a->grid, b->grid, grids) != 0 ? "low-rank sums in other units"
                                                                                          : NULL;
    if (!other) return EXF_OK;
    return exf_fail(
        err, EXF_MODEL,
        "%s: layer %d has %s than %s, and sums over them do not add: make them in one exfold-accumulate over the captures of "
        "all parts",
        m->part[i].path, layer, other, m->part[0].path);
}

/* Takes the grids of a basis that all files have, so that no sum is rounded again. */
static exf_code take_grids(const merging *m, exf_vector_sums *to, const exf_vector_sums *from, const exf_layer_statistics *s,
                           int layer, exf_err *err)
{
    for (int64_t i = 0; to->grid && i < to->n_pairs; i++) {
        const int32_t *grid = from->grid + EXF_N_GRIDS * i, *pair = to->pair + 2 * i;
        size_t at = (size_t)pair[0] * (size_t)s->n_experts + (size_t)pair[1];
        memcpy(to->grid + EXF_N_GRIDS * i, grid, EXF_N_GRIDS * sizeof *grid);
        if (!exf_grids_fit(grid, exf_exact_value(&s->source_sq[at]), exf_exact_value(&s->target_sq[at])))
            return exf_fail(err, EXF_FORMAT, "%s: layer %d, pair %d -> %d: grid 2^%d is too fine for the merged sums",
                            m->part[0].path, layer, (int)pair[0], (int)pair[1], (int)grid[EXF_GRID_ZU]);
    }
    return EXF_OK;
}

static exf_code too_large(const char *path, double a, double b, exf_err *err)
{
    return exf_fail(err, EXF_FORMAT, "%s: vector sums of %.17g and %.17g in the files before are more together than a sum holds",
                    path, b, a);
}

static exf_code add_grid(int64_t *to, int to_grid, int64_t *from, int from_grid, size_t n, const char *path, exf_err *err)
{
    if (from_grid > to_grid)
        return exf_fail(err, EXF_FORMAT, "%s: low-rank sums in units of 2^%d, coarser than their scalar sums allow (2^%d)", path,
                        from_grid, to_grid);
    exf_grid_coarsen(from, n, from_grid, to_grid);
    for (size_t i = 0; i < n; i++) {
        if (from[i] > 0 ? to[i] > INT64_MAX - from[i] : to[i] < INT64_MIN - from[i])
            return too_large(path, (double)to[i], (double)from[i], err);
        to[i] += from[i];
    }
    return EXF_OK;
}

static exf_code add_exact(exf_exact *to, const exf_exact *from, const char *path, exf_err *err)
{
    exf_exact back = *from;
    if (!exf_exact_merge(to, from)) return EXF_OK;
    exf_exact_negate(&back);
    (void)exf_exact_merge(&back, to);
    return too_large(path, exf_exact_value(&back), exf_exact_value(from), err);
}

/* Adds `from` to `to`, and overwrites `from`. */
static exf_code add_vectors(exf_vector_sums *to, exf_vector_sums *from, const char *path, exf_err *err)
{
    size_t h = (size_t)to->d_model, r = (size_t)to->rank;
    exf_code rc = EXF_OK;
    for (size_t i = 0; to->vu && i < (size_t)to->n_pairs * h; i++) {
        EXF_TRY(add_exact(&to->vu[i], &from->vu[i], path, err));
        EXF_TRY(add_exact(&to->vv[i], &from->vv[i], path, err));
    }
    for (size_t p = 0; to->grid && p < (size_t)to->n_pairs; p++) {
        const int32_t *a = to->grid + EXF_N_GRIDS * p, *b = from->grid + EXF_N_GRIDS * p;
        EXF_TRY(add_grid(to->zz + p * r * r, a[EXF_GRID_ZV], from->zz + p * r * r, b[EXF_GRID_ZV], r * r, path, err));
        EXF_TRY(add_grid(to->zu + p * r * h, a[EXF_GRID_ZU], from->zu + p * r * h, b[EXF_GRID_ZU], r * h, path, err));
        EXF_TRY(add_grid(to->zv + p * r * h, a[EXF_GRID_ZV], from->zv + p * r * h, b[EXF_GRID_ZV], r * h, path, err));
    }
out:
    return rc;
}

/* Merges layer i's vector sums of all files; s: its merged scalar sums.  Two files' sums are in memory at a time. */
static exf_code merge_vectors(merging *m, exf_statistics_writer *w, int i, const exf_layer_statistics *s, exf_err *err)
{
    exf_vector_sums all = {.n_pairs = 0}, one = {.n_pairs = 0};
    int layer = m->file[0].layer_number[i];
    exf_code rc = EXF_OK;
    for (size_t k = 0; k < m->n; k++) {
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(exf_statistics_get_vectors(&m->file[k], i, &one, err));
        if (k == 0) {
            EXF_TRY(exf_vector_sums_new(&all, one.n_pairs, (int)m->shape.d_model, one.vu != NULL, one.rank, err));
            if (one.n_pairs) memcpy(all.pair, one.pair, 2 * (size_t)one.n_pairs * sizeof *one.pair);
            if (one.basis) memcpy(all.basis, one.basis, (size_t)one.d_model * (size_t)one.rank * sizeof *one.basis);
            if (exf_provenance_get(&m->provenance, EXF_BASIS_FACT))
                EXF_TRY(take_grids(m, &all, &one, s, layer, err));
            else
                exf_vector_sums_choose_grids(&all, s); /* no file's own grid is coarser, since its bound is no larger */
        }
        EXF_TRY(check_vectors(m, &all, &one, k, layer, err));
        EXF_TRY(add_vectors(&all, &one, m->part[k].path, err));
        exf_vector_sums_free(&one);
    }
    rc = exf_statistics_put_vectors(w, layer, &all, err);
out:
    exf_vector_sums_free(&all);
    exf_vector_sums_free(&one);
    return rc;
}

/* Allocates the sample of all files' tokens, as large as the sample that each file was to have. */
static exf_code make_sample(const merging *m, exf_route_sample *s, exf_err *err)
{
    const char *text = exf_provenance_get(&m->provenance, "accumulate.route_sample");
    int64_t tokens, q;
    exf_code rc;
    if (!text) return EXF_OK;
    if (!exf_parse_i64(text, &tokens) || tokens < 1 || tokens > INT32_MAX)
        return exf_fail(err, EXF_FORMAT, "%s: provenance says accumulate.route_sample is %s, expected a number of tokens",
                        m->part[0].path, text);
    EXF_TRY(exf_route_sample_new(s, (size_t)(tokens < m->shape.n_tokens ? tokens : m->shape.n_tokens), (int)m->shape.top_k, err));
    text = exf_provenance_get(&m->provenance, EXF_NORM_HEAD_FACT);
    if (text && (!exf_parse_i64(text, &q) || q < 1 || q > EXF_NORM_MOST))
        rc = exf_fail(err, EXF_FORMAT, "%s: provenance says %s is %s, expected 1 to %d", m->part[0].path, EXF_NORM_HEAD_FACT, text,
                      EXF_NORM_MOST);
    else if (text)
        rc = exf_route_sample_add_head(s, exf_norm_directions(q, m->shape.d_model), err);
out:
    return rc;
}

/* ---- merging -------------------------------------------------------------------------------- */

static exf_code merge_layers(merging *m, exf_statistics_writer *w, exf_err *err)
{
    exf_layer_statistics sum = {.dot = NULL}, one = {.dot = NULL};
    int vectors = exf_provenance_get(&m->provenance, "accumulate.vectors") != NULL;
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
        if (vectors) EXF_TRY(merge_vectors(m, w, i, &sum, err));
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
