/* artifact_statistics.c - the file format `statistics`, version 5.
 *
 * Root attributes beside those of artifact.h:
 *   n_experts, top_k, d_model, n_sequences, n_tokens   i64
 * Datasets, E = n_experts, one group per MoE layer, <l> the model's layer number:
 *   /layer_numbers                 I32 [L]      ascending
 *   /layers/<l>/dot                F64 [E, E]   row = source, column = target
 *   /layers/<l>/target_sq          F64 [E, E]
 *   /layers/<l>/source_sq          F64 [E, E]
 *   /layers/<l>/dot0               F64 [E, E]
 *   /layers/<l>/sq0                F64 [E, E]
 *   /layers/<l>/count              U64 [E, E]   tokens whose top-K holds both
 *   /layers/<l>/norm_sum           F64 [E]
 *   /layers/<l>/sq_sum             F64 [E]
 *   /layers/<l>/route_weight_sum   F64 [E]
 *   /layers/<l>/contribution_sum   F64 [E]
 *   /layers/<l>/norm_count         U64 [E]      tokens routed to the expert
 *   /layers/<l>/exact/<name>       U64 [..., 3] the same sums exactly: a 192-bit
 *       two's-complement integer in units of 2^-96, least significant word first
 * The F64 datasets are the exact sums rounded to nearest; a file where they
 * disagree is damaged.  All are sums and counts, never means, so files of different
 * data can be added.  The terms are defined in kernels/statistics/layer_sums.h.  A count of 0
 * means that the pair or expert was never observed; its sums are 0 and mean nothing.
 * Since version 2:
 *   pairs                          text        root attribute: "corouted", or "common_input" (every
 *       expert ran on the same tokens, each of which counts for every pair); absent: corouted
 *   /sequence_lengths, /sequence_sha256        as in a capture, but in order of digest, so that
 *       the same data in other parts is the same file; without them the next four are absent
 *   /layers/<l>/seq_aa, seq_ab, seq_bb  F64 [E, E] and exact/...: over sequences, of products of a
 *       sequence's own dot and target_sq times 2^-24
 *   /layers/<l>/sequences          U64 [E, E]  sequences that observed the pair
 *   /origin                        a group of text attributes: the manifest, tokens and shard of each part
 *       that was added up.  It records how the file was made, so no digest covers it.
 *   /layers/<l>/vectors/...        vector_sums.h; what they were added up over is the fact
 *       accumulate.basis_digest (artifact_basis.h), which files of earlier programs lack
 * Since version 4, each of which may be absent:
 *   /layers/<l>/energy_sum         F64 [E] and exact/...: squares of router weight times norm
 *   /layers/<l>/stream/sq          F64 [1]      squared norms of the residual stream after the layer, summed over tokens
 *   /layers/<l>/stream/exact       U64 [1, 3]   the same sum exactly
 *   /layers/<l>/stream/count       U64 [1]      tokens that it is over
 *   /layers/<l>/routes/key         U64 [N]      rising; the N tokens of the smallest keys (statistics.h)
 *   /layers/<l>/routes/ids         I32 [N, K]   as the router chose; -1, of weight 0: an empty slot
 *   /layers/<l>/routes/weights     F32 [N, K]
 *   /layers/<l>/routes/head        F32 [N, q + 1 + K]  in files with the fact accumulate.norm_head: V'x, log ||x|| and each slot's
 *       logit less the mean of all, multiples of 2^-12 as in norm_sums.h
 *   /layers/<l>/empty_slots        U64 [1]      slots of the layer's tokens without an expert (a hash layer that names an
 *       expert twice for a token); absent: 0
 * Since version 5, in files that know their sequences; absent: not known:
 *   /layers/<l>/half/dot, target_sq, source_sq  U64 [E, E, 3]  the exact sums of those sequences alone whose SHA-256 has a last
 *       byte that is odd: one half of the data.  The other half's are what the whole has beyond them.
 *   /layers/<l>/half/count         U64 [E, E]   tokens of that half
 * In files of common input with the fact accumulate.bare_router; absent: not observed:
 *   /layers/<l>/bare/norm_sum, contribution_sum  U64 [E, 3]  exact, of ||E_e(x)|| and w ||E_e(x)|| over routes of REAP's code
 *   /layers/<l>/bare/count         U64 [E]      tokens of common input that it gives the expert
 *   /layers/<l>/norms/...          norm_sums.h, in files with the fact accumulate.norm_head
 * Counts obey the rules of data.h, which every reader checks.
 * A reader of version 1 ignores these without harm, but would take the counts of common_input for damage. */
#include "artifact/artifact_basis.h"
#include "artifact/layer_datasets.h"
#include "artifact/provenance.h"
#include "artifact/statistics.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* Files of common input have min_reader 2, so that readers of version 1 refuse them as too new, not as damaged. */
static const exf_artifact of_common_input = {.kind = "statistics", .version = 5, .min_reader = 2};

/* ---- the datasets of a layer --------------------------------------------- */

static exf_code write_dataset(exf_h5 *h, exf_layer_dataset d, const void *data, exf_err *err)
{
    d.t.name = d.path;
    d.t.data = data;
    return exf_h5_write(h, &d.t, err);
}

static exf_code read_dataset(exf_h5 *h, exf_layer_dataset d, void *to, exf_err *err)
{
    d.t.name = d.path;
    return exf_h5_read(h, &d.t, to, err);
}

static exf_code expect_dataset(exf_h5 *h, exf_layer_dataset d, exf_err *err)
{
    d.t.name = d.path;
    return exf_h5_expect(h, &d.t, err);
}

/* Looks whether a layer has a dataset or group of that name. */
static exf_code look_for(exf_h5 *h, int layer, const char *name, int *found, exf_err *err)
{
    return exf_h5_exists(h, exf_layer_dataset_of(layer, name, EXF_DT_U8, 1, 0, 0).path, found, err);
}

/* *out [n]: the sums rounded to nearest; the caller frees them. */
static exf_code round_sums(double **out, const exf_exact *sum, size_t n, exf_err *err)
{
    double *rounded;
    exf_code rc = exf_mem_new(out, n, sizeof **out, "rounded sums", err);
    if (rc != EXF_OK) return rc;
    rounded = *out;
    for (size_t i = 0; i < n; i++) rounded[i] = exf_exact_value(&sum[i]);
    return exf_stop_check(err);
}

/* ---- writing ------------------------------------------------------------ */

/* Returns 1 for facts that a calibration knows only after its pass. */
static int is_late(const char *key)
{
    return exf_weights_facts_key(key) || strcmp(key, EXF_BASIS_FACT) == 0;
}

/* Splits facts: late ones are written last, by merging too,
 * so the file's bytes are the same whoever writes it. */
static exf_code split_facts(const exf_provenance *all, exf_provenance *first, exf_provenance *late, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < all->n; i++)
        rc = exf_provenance_add(is_late(all->key[i]) ? late : first, err, all->key[i], "%s", all->value[i]);
    return rc;
}

exf_code exf_statistics_start(exf_statistics_writer *w, const char *target, int force, const exf_statistics_header *head,
                              exf_err *err)
{
    exf_provenance first = {0};
    exf_code rc;
    memset(w, 0, sizeof *w);
    w->shape = head->shape;
    EXF_TRY(split_facts(head->provenance, &first, &w->late, err));
    w->by_sequence = head->sequences && head->sequences->length;
    w->without_energies = head->without_energies;
    w->halves = w->by_sequence && !head->without_halves;
    EXF_TRY(exf_statistics_order_layers(w, head, err));
    EXF_TRY(exf_artifact_create(&w->h, target, force, NULL,
                                head->is_basis       ? &exf_artifact_basis
                                : head->common_input ? &of_common_input
                                                     : &exf_artifact_statistics,
                                &first, err));
    EXF_TRY(exf_run_shape_write(&head->shape, w->h, err));
    EXF_TRY(exf_h5_put_text(w->h, "/", "pairs", head->common_input ? "common_input" : "corouted", err));
    EXF_TRY(exf_layer_numbers_write(head->layer_number, head->n_layers, w->h, err));
    if (w->by_sequence) EXF_TRY(exf_sequence_list_write(head->sequences, w->h, err));
    if (head->origin) EXF_TRY(exf_facts_write(head->origin, "/" EXF_H5_ORIGIN, w->h, err));
out:
    exf_provenance_free(&first);
    if (rc != EXF_OK) exf_statistics_abort(w);
    return rc;
}

exf_code exf_statistics_put(exf_statistics_writer *w, int layer, const exf_layer_statistics *s, exf_err *err)
{
    double stream_sq = exf_exact_value(s->stream_sq);
    exf_code rc;
    EXF_TRY(exf_layer_sums_write(w, layer, s, err));
    EXF_TRY(exf_bare_sums_write(w->h, layer, s, err));
    EXF_TRY(exf_norm_sums_write(&s->norms, w->h, layer, err));
    if (*s->stream_count) {
        EXF_TRY(write_dataset(w->h, exf_layer_dataset_of(layer, "stream/sq", EXF_DT_F64, 1, 0, 0), &stream_sq, err));
        EXF_TRY(write_dataset(w->h, exf_layer_dataset_of(layer, "stream/exact", EXF_DT_U64, 1, 3, 0), s->stream_sq, err));
        EXF_TRY(write_dataset(w->h, exf_layer_dataset_of(layer, "stream/count", EXF_DT_U64, 1, 0, 0), s->stream_count, err));
    }
    if (*s->empty_slots)
        EXF_TRY(write_dataset(w->h, exf_layer_dataset_of(layer, "empty_slots", EXF_DT_U64, 1, 0, 0), s->empty_slots, err));
    rc = exf_route_sample_write(&s->routes, w->h, layer, err);
out:
    return rc;
}

exf_code exf_statistics_put_vectors(exf_statistics_writer *w, int layer, const exf_vector_sums *v, exf_err *err)
{
    return exf_vector_sums_write(v, w->h, layer, err);
}

exf_code exf_statistics_add_facts(exf_statistics_writer *w, const exf_provenance *p, exf_err *err)
{
    return exf_provenance_copy(&w->late, p, err);
}

exf_code exf_statistics_commit(exf_statistics_writer *w, char digest[EXF_SHA256_HEX], exf_err *err)
{
    exf_h5 *h;
    exf_code rc;
    EXF_TRY(exf_facts_append(&w->late, "/provenance", w->h, err));
    if (digest) EXF_TRY(exf_h5_digest(w->h, digest, err));
    h = w->h;
    w->h = NULL;
    rc = exf_h5_commit(h, err);
out:
    exf_statistics_abort(w);
    return rc;
}

void exf_statistics_abort(exf_statistics_writer *w)
{
    exf_mem_free(w->in_digest);
    w->in_digest = NULL;
    exf_provenance_free(&w->late);
    exf_h5_close(w->h);
    w->h = NULL;
}

/* ---- reading -------------------------------------------------------------- */

/* Reads the attribute `pairs`; version 1 had co-routed pairs only. */
static exf_code read_pairs(exf_statistics_reader *r, exf_err *err)
{
    char *pairs = NULL;
    int has;
    exf_code rc = exf_h5_has_attr(r->h, "/", "pairs", &has, err);
    if (rc != EXF_OK || !has) return rc;
    rc = exf_h5_get_text(r->h, "/", "pairs", &pairs, err);
    if (rc != EXF_OK) return rc;
    r->common_input = strcmp(pairs, "common_input") == 0;
    if (!r->common_input && strcmp(pairs, "corouted") != 0)
        rc = exf_fail(err, EXF_FORMAT, "%s: pairs is \"%s\", expected corouted or common_input", exf_h5_path(r->h), pairs);
    exf_mem_free(pairs);
    return rc;
}

exf_code exf_statistics_open(exf_statistics_reader *r, const char *path, exf_err *err)
{
    exf_code rc;
    memset(r, 0, sizeof *r);
    EXF_TRY(exf_artifact_open(&r->h, path, &exf_artifact_statistics, NULL, &r->provenance, err));
    EXF_TRY(exf_run_shape_read(&r->shape, r->h, err));
    EXF_TRY(exf_layer_numbers_read(&r->layer_number, &r->n_layers, &r->provenance, r->h, err));
    EXF_TRY(read_pairs(r, err));
    EXF_TRY(exf_sequence_list_read(&r->sequences, r->shape.n_sequences, r->shape.n_tokens, r->h, err));
    if (r->common_input)
        EXF_TRY(exf_common_tokens_of(&r->common, &r->shape, &r->sequences, &r->provenance, path, err));
    EXF_TRY(exf_facts_read(&r->origin, "/" EXF_H5_ORIGIN, r->h, err));
    /* The first layer's pair sums are looked at before anybody takes memory for layers of that many experts. */
#define X(sum) EXF_TRY(expect_dataset(r->h, exf_layer_sums_dataset(r->layer_number[0], #sum, 2, r->shape.n_experts, 1), err));
    EXF_PAIR_SUMS(X)
#undef X
    EXF_TRY(look_for(r->h, r->layer_number[0], "energy_sum", &r->has_energies, err));
    if (r->sequences.length) rc = look_for(r->h, r->layer_number[0], "half", &r->has_halves, err);
out:
    if (rc != EXF_OK) exf_statistics_close(r);
    return rc;
}

/* Reads sums of one name and compares the rounded ones with the exact ones. */
static exf_code get_sums(exf_statistics_reader *r, int layer, const char *name, exf_exact *sum, int rank, exf_err *err)
{
    int64_t e = r->shape.n_experts;
    size_t n = (size_t)(rank == 2 ? e * e : e);
    exf_layer_dataset d = exf_layer_sums_dataset(layer, name, rank, e, 0);
    double *rounded = NULL, *should = NULL;
    exf_code rc;
    EXF_TRY(read_dataset(r->h, exf_layer_sums_dataset(layer, name, rank, e, 1), sum, err));
    EXF_TRY(exf_mem_new(&rounded, n, sizeof *rounded, "rounded sums", err));
    EXF_TRY(read_dataset(r->h, d, rounded, err));
    EXF_TRY(round_sums(&should, sum, n, err));
    for (size_t i = 0; rc == EXF_OK && i < n; i++)
        if (!(rounded[i] == should[i]))
            rc = exf_fail(err, EXF_FORMAT, "%s: %s[%zu] is %.17g, its exact sum is %.17g", exf_h5_path(r->h), d.path, i, rounded[i],
                          should[i]);
out:
    exf_mem_free(rounded);
    exf_mem_free(should);
    return rc;
}

static exf_code check_counts(const exf_statistics_reader *r, int layer, const exf_layer_statistics *s, exf_err *err)
{
    char pairs[EXF_DATASET_PATH], experts[EXF_DATASET_PATH];
    snprintf(pairs, sizeof pairs, "/layers/%d/count[", layer);
    snprintf(experts, sizeof experts, "/layers/%d/norm_count[", layer);
    exf_layer_counts c = {.path = exf_h5_path(r->h), .layer = layer, .pairs = pairs, .experts = experts, .run = &r->shape,
                          .common = r->common, .count = s->count, .expert_count = s->norm_count, .empty_slots = *s->empty_slots};
    return exf_counts_check(&c, err);
}

/* Checks sequence counts: 0 for a pair without tokens, else at least one and at most one per token. */
static exf_code check_sequences(const exf_statistics_reader *r, int layer, const exf_layer_statistics *s, exf_err *err)
{
    size_t e = (size_t)s->n_experts;
    for (size_t i = 0; i < e * e; i++)
        if (s->sequences[i] > s->count[i] || s->sequences[i] > r->sequences.n || (s->count[i] && !s->sequences[i]))
            return exf_fail(err, EXF_FORMAT, "%s: /layers/%d/sequences[%zu, %zu] is %llu for %llu tokens of %zu sequences",
                            exf_h5_path(r->h), layer, i / e, i % e, (unsigned long long)s->sequences[i],
                            (unsigned long long)s->count[i], r->sequences.n);
    return EXF_OK;
}

static exf_code get_sequences(exf_statistics_reader *r, int layer, exf_layer_statistics *s, exf_err *err)
{
    int64_t e = r->shape.n_experts;
    exf_code rc;
#define X(name) EXF_TRY(get_sums(r, layer, #name, s->name, 2, err));
    EXF_SEQUENCE_SUMS(X)
#undef X
    EXF_TRY(read_dataset(r->h, exf_layer_dataset_of(layer, "sequences", EXF_DT_U64, e, e, 0), s->sequences, err));
    rc = check_sequences(r, layer, s, err);
out:
    return rc;
}

/* Reads the sums of a half; its counts are mirrored and no larger than the whole ones, and without a token there is no sum. */
static exf_code get_half(exf_statistics_reader *r, int layer, exf_layer_statistics *s, exf_err *err)
{
    int64_t e = r->shape.n_experts;
    exf_code rc;
#define X(name) EXF_TRY(read_dataset(r->h, exf_half_sums_dataset(layer, #name, e), s->name, err));
    EXF_HALF_SUMS(X)
#undef X
    EXF_TRY(read_dataset(r->h, exf_layer_dataset_of(layer, "half/count", EXF_DT_U64, e, e, 0), s->half_count, err));
    for (int64_t i = 0; rc == EXF_OK && i < e * e; i++) {
        int64_t mirror = i % e * e + i / e;
        if (s->half_count[i] <= s->count[i] && s->half_count[i] == s->half_count[mirror]) continue;
        rc = exf_fail(err, EXF_FORMAT, "%s: /layers/%d/half/count[%lld, %lld] is %llu, the mirrored pair's %llu, the whole's %llu",
                      exf_h5_path(r->h), layer, (long long)(i / e), (long long)(i % e), (unsigned long long)s->half_count[i],
                      (unsigned long long)s->half_count[mirror], (unsigned long long)s->count[i]);
    }
out:
    return rc;
}

static exf_code get_stream(exf_statistics_reader *r, int layer, exf_layer_statistics *s, exf_err *err)
{
    double rounded;
    exf_code rc;
    EXF_TRY(read_dataset(r->h, exf_layer_dataset_of(layer, "stream/sq", EXF_DT_F64, 1, 0, 0), &rounded, err));
    EXF_TRY(read_dataset(r->h, exf_layer_dataset_of(layer, "stream/exact", EXF_DT_U64, 1, 3, 0), s->stream_sq, err));
    EXF_TRY(read_dataset(r->h, exf_layer_dataset_of(layer, "stream/count", EXF_DT_U64, 1, 0, 0), s->stream_count, err));
    if (!(rounded == exf_exact_value(s->stream_sq)))
        rc = exf_fail(err, EXF_FORMAT, "%s: /layers/%d/stream/sq is %.17g, its exact sum is %.17g", exf_h5_path(r->h), layer,
                      rounded, exf_exact_value(s->stream_sq));
    else if (!(rounded > 0) || *s->stream_count < 1 || *s->stream_count > (uint64_t)r->shape.n_tokens)
        rc = exf_fail(err, EXF_FORMAT,
                      "%s: /layers/%d/stream has an energy of %.17g over %llu tokens, expected one above 0 over 1 to %lld",
                      exf_h5_path(r->h), layer, rounded, (unsigned long long)*s->stream_count, (long long)r->shape.n_tokens);
out:
    return rc;
}

exf_code exf_statistics_get(exf_statistics_reader *r, int i, exf_layer_statistics *s, exf_err *err)
{
    int layer = r->layer_number[i], has_stream, has_empty_slots;
    int64_t e = r->shape.n_experts;
    exf_code rc;
    exf_layer_statistics_zero(s);
#define X(name) EXF_TRY(get_sums(r, layer, #name, s->name, 2, err));
    EXF_PAIR_SUMS(X)
#undef X
#define X(name) EXF_TRY(get_sums(r, layer, #name, s->name, 1, err));
    EXF_EXPERT_SUMS_OF_VERSION_1(X)
    if (r->has_energies) X(energy_sum)
#undef X
    EXF_TRY(read_dataset(r->h, exf_layer_dataset_of(layer, "count", EXF_DT_U64, e, e, 0), s->count, err));
    EXF_TRY(read_dataset(r->h, exf_layer_dataset_of(layer, "norm_count", EXF_DT_U64, e, 0, 0), s->norm_count, err));
    EXF_TRY(look_for(r->h, layer, "empty_slots", &has_empty_slots, err));
    EXF_TRY(look_for(r->h, layer, "stream", &has_stream, err));
    if (has_empty_slots)
        EXF_TRY(read_dataset(r->h, exf_layer_dataset_of(layer, "empty_slots", EXF_DT_U64, 1, 0, 0), s->empty_slots, err));
    if (has_stream) EXF_TRY(get_stream(r, layer, s, err));
    EXF_TRY(exf_route_sample_read(&s->routes, r->h, &r->shape, layer, err));
    EXF_TRY(check_counts(r, layer, s, err));
    if (r->sequences.length) EXF_TRY(get_sequences(r, layer, s, err));
    if (r->has_halves) EXF_TRY(get_half(r, layer, s, err));
    EXF_TRY(exf_norm_sums_read(&s->norms, r->h, &r->shape, layer, s->norm_count, err));
    rc = exf_bare_sums_read(r->h, layer, r->shape.top_k, r->common_input, s, err);
out:
    return rc;
}

exf_code exf_statistics_get_back(const exf_statistics_writer *w, int layer, const exf_sequence_list *sequences,
                                 exf_layer_statistics *s, exf_vector_sums *v, exf_err *err)
{
    int32_t number = layer;
    exf_statistics_reader r = {.h = w->h, .shape = w->shape, .n_layers = 1, .layer_number = &number,
                               .has_energies = !w->without_energies, .has_halves = w->halves};
    if (w->by_sequence) r.sequences = *sequences; /* borrowed */
    exf_code rc = exf_statistics_get(&r, 0, s, err);
    return rc == EXF_OK && v ? exf_statistics_get_vectors(&r, 0, v, err) : rc;
}

exf_code exf_statistics_get_vectors(exf_statistics_reader *r, int i, exf_vector_sums *v, exf_err *err)
{
    return exf_vector_sums_read(v, EXF_VECTORS_SUMS, r->h, &r->shape, r->layer_number[i], err);
}

exf_code exf_statistics_get_vector_pairs(exf_statistics_reader *r, int i, int32_t **pair, int64_t *n, exf_err *err)
{
    exf_vector_sums v;
    exf_code rc = exf_vector_sums_read(&v, EXF_VECTORS_PAIRS, r->h, &r->shape, r->layer_number[i], err);
    *pair = v.pair;
    *n = v.n_pairs;
    return rc;
}

void exf_statistics_close(exf_statistics_reader *r)
{
    exf_h5_close(r->h);
    exf_mem_free(r->layer_number);
    exf_provenance_free(&r->provenance);
    exf_provenance_free(&r->origin);
    exf_sequence_list_free(&r->sequences);
    memset(r, 0, sizeof *r);
}
