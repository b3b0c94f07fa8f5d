/* statistics_file.c - the file format `statistics`, version 6.
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
 *   /sequence_document             U8 [N, 32]   identity of each sequence's document, by which halves are dealt, near copies being
 *       one document; absent: each sequence is one, and halves are dealt by its own digest, as in all files of earlier versions
 *   /document_sketches             U8 [D, 128]  sketches of their documents, distinct and in rising order: the lowest bytes of 128
 *       values of which two documents have about the share in common that is the Jaccard similarity of their sets of runs of three
 *       words (near_copies.h); of more than 65,536 documents those of the least; absent: not known
 *   /layers/<l>/seq_aa, seq_ab, seq_bb  F64 [E, E] and exact/...: over sequences, of products of a
 *       sequence's own dot and target_sq times 2^-24
 *   /layers/<l>/sequences          U64 [E, E]  sequences that observed the pair
 *   /origin                        a group of text attributes: the manifest, tokens and shard of each part
 *       that was added up, and how tables are to be solved where there is no recipe (EXF_SETTING).  It records how the file was
 *       made, so no digest covers it.
 *   /layers/<l>/vectors/...        vector_sums.h; what they were added up over is the fact
 *       accumulate.basis_digest (there), which files of earlier programs lack
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
 *   /layers/<l>/half/dot, target_sq, source_sq  U64 [E, E, 3]  the exact sums of those sequences alone whose document's digest has
 *       a last byte that is odd: one half of the data.  The other half's are what the whole has beyond them.
 *   /layers/<l>/half/count         U64 [E, E]   tokens of that half
 * Since version 6, where there is a stream:
 *   /layers/<l>/stream_inverse/sq  F64 [1] and exact U64 [1, 3]  inverses of the squared norms of the residual stream, each norm
 *       counting as 2^-32 at least, summed over tokens
 *   /layers/<l>/stream_inverse/count  U64 [1]   tokens that it is over: of merged files, those of the parts that have it
 *   /layers/<l>/stream_first/sq, exact, count   as stream, over the first tokens of sequences; absent: not observed
 * Since version 6; absent: not known, since some part is older:
 *   /layers/<l>/cosine_sum         F64 [E, E] and exact/...: cosines of the outputs of source and target, symmetric
 * In files of common input with the fact accumulate.bare_router; absent: not observed:
 *   /layers/<l>/bare/norm_sum, contribution_sum  U64 [E, 3]  exact, of ||E_e(x)|| and w ||E_e(x)|| over routes of REAP's code
 *   /layers/<l>/bare/count         U64 [E]      tokens of common input that it gives the expert
 *   /layers/<l>/norms/...          norm_sums.h, in files with the fact accumulate.norm_head
 * Counts obey the rules of data.h, which every reader checks.
 * A reader of version 1 ignores these without harm, but would take the counts of common_input for damage. */
#include "artifact/provenance.h"
#include "accumulate/statistics.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Files of common input have min_reader 2, so that readers of version 1 refuse them as too new, not as damaged. */
static const exf_artifact of_common_input = {.kind = "statistics", .version = 6, .min_reader = 2};

/* ---- the order of the digest --------------------------------------------- */

/* The digest walks over the layers in order of their groups' names, 0, 1, 10, 11, ..., 2: a layer is hashed as soon as all that
 * come before it are written.  Of 48 layers nine tenths are hashed by then when the last one is. */

/* Orders layers as their groups' names are: 10 before 2. */
static int compare_names(const void *a, const void *b)
{
    const struct exf_hashed_layer *x = a, *y = b;
    char name[2][16];
    snprintf(name[0], sizeof name[0], "%d", (int)x->number);
    snprintf(name[1], sizeof name[1], "%d", (int)y->number);
    return strcmp(name[0], name[1]);
}

exf_code exf_statistics_layer_done(exf_statistics_writer *w, int layer, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; i < w->n_layers; i++) w->in_digest[i].done |= w->in_digest[i].number == layer;
    for (; w->n_hashed < w->n_layers && w->in_digest[w->n_hashed].done; w->n_hashed++) {
        char group[32];
        snprintf(group, sizeof group, "/layers/%d", (int)w->in_digest[w->n_hashed].number);
        EXF_TRY(exf_h5_digest_through(w->h, group, err));
    }
out:
    return rc;
}

/* ---- writing ------------------------------------------------------------ */

/* Facts that a calibration knows only after its pass are written last, by merging too, so that the file's bytes are the same
 * whoever writes it. */
exf_code exf_statistics_start(exf_statistics_writer *w, const char *target, int force, const exf_statistics_header *head,
                              exf_err *err)
{
    const exf_provenance *facts = head->provenance;
    exf_provenance first = {0};
    exf_code rc;
    memset(w, 0, sizeof *w);
    w->shape = head->shape;
    for (size_t i = 0; i < facts->n; i++) {
        int is_late = exf_weights_facts_key(facts->key[i]) || strcmp(facts->key[i], EXF_BASIS_FACT) == 0;
        EXF_TRY(exf_provenance_add(is_late ? &w->late : &first, err, facts->key[i], "%s", facts->value[i]));
    }
    for (int p = 0; p < EXF_PART_BARE; p++) w->has[p] = !head->lacks[p];
    w->has[EXF_PART_SEQUENCES] = head->sequences && head->sequences->length;
    w->has[EXF_PART_HALVES] &= w->has[EXF_PART_SEQUENCES];
    EXF_TRY(exf_mem_new(&w->in_digest, (size_t)head->n_layers, sizeof *w->in_digest, "list of layers", err));
    w->n_layers = head->n_layers;
    for (int i = 0; i < w->n_layers; i++) w->in_digest[i].number = head->layer_number[i];
    qsort(w->in_digest, (size_t)w->n_layers, sizeof *w->in_digest, compare_names);
    EXF_TRY(exf_artifact_create(&w->h, target, force, NULL, head->common_input ? &of_common_input : &exf_artifact_statistics,
                                &first, err));
    EXF_TRY(exf_run_shape_write(&head->shape, w->h, err));
    EXF_TRY(exf_h5_put_text(w->h, "/", "pairs", head->common_input ? "common_input" : "corouted", err));
    EXF_TRY(exf_layer_numbers_write(head->layer_number, head->n_layers, w->h, err));
    if (w->has[EXF_PART_SEQUENCES]) EXF_TRY(exf_sequence_list_write(head->sequences, w->h, err));
    if (head->origin) EXF_TRY(exf_facts_write(head->origin, "/" EXF_H5_ORIGIN, w->h, err));
out:
    exf_provenance_free(&first);
    if (rc != EXF_OK) exf_statistics_abort(w);
    return rc;
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
    rc = exf_statistics_find_parts(r, err);
out:
    if (rc != EXF_OK) exf_statistics_close(r);
    return rc;
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
