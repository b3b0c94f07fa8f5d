/* basis_file.c - the file format `basis`, version 3, the first; see basis_file.h.
 *
 * exfold-calibrate --basis-only writes it; calibrate.basis gives it to the runs over shards of the same data.
 * Root attributes beside those of artifact.h:
 *   n_experts, top_k, d_model, n_sequences, n_tokens   i64    of the run that made it
 *   pairs                          text         as in statistics
 * Datasets, one group per MoE layer that has pairs with vectors, <l> the model's layer number, P such pairs,
 * H = d_model, R columns:
 *   /layer_numbers                 I32 [L]      ascending
 *   /sequence_lengths, /sequence_sha256         as in statistics: the data that it was made from
 *   /layers/<l>/vectors/pair       I32 [P, 2]   source, target; ascending
 *   /layers/<l>/vectors/basis      F64 [H, R]   orthonormal columns; absent for diagonal sums alone
 *   /layers/<l>/vectors/grid       I32 [P, 2]   exponents of the units of zu; of zv and zz; absent with basis
 *   /layers/<l>/norms/basis        F64 [H, q]   directions of the norm head; absent without calibrate.norm_head
 *   /origin                        as in statistics
 * The fact accumulate.basis_digest is the SHA-256 over all layers' number, P, H, R (u64), pair, basis, grid, and with a norm
 * head q (u64) and its directions, little endian.  The facts accumulate.rank (absent: 32, or H), .samples, .seed,
 * .vector_pairs, .ridge, .clip and .norm_head say how it was chosen. */
#include "accumulate/basis_file.h"

#include "artifact/provenance.h"
#include "base/mem.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

exf_code exf_basis_hash(exf_hash *h, int layer_number, const exf_vector_sums *v, exf_err *err)
{
    size_t p = (size_t)v->n_pairs, r = (size_t)v->rank, d = (size_t)v->d_model;
    const uint64_t head[] = {(uint64_t)layer_number, (uint64_t)p, (uint64_t)d, (uint64_t)r};
    exf_code rc;
    for (size_t i = 0; i < sizeof head / sizeof *head; i++) EXF_TRY(exf_hash_add_u64(h, head[i], err));
    if (!p) return EXF_OK;
    EXF_TRY(exf_hash_add(h, v->pair, 2 * p * sizeof *v->pair, err));
    if (!r) return EXF_OK;
    EXF_TRY(exf_hash_add(h, v->basis, d * r * sizeof *v->basis, err));
    EXF_TRY(exf_hash_add(h, v->grid, p * EXF_N_GRIDS * sizeof *v->grid, err));
out:
    return rc;
}

/* ---- reading ------------------------------------------------------------------------------ */

static exf_code read_layer(const exf_basis *b, int layer_number, exf_vector_sums *v, exf_err *err)
{
    exf_code rc = exf_vector_sums_read(v, EXF_VECTORS_CHOICE, b->h, &b->shape, layer_number, err);
    v->d_model = (int)b->shape.d_model; /* of a layer without pairs too */
    return rc;
}

exf_code exf_basis_get(const exf_basis *b, int layer_number, exf_vector_sums *v, exf_err *err)
{
    memset(v, 0, sizeof *v);
    for (int i = 0; i < b->n_layers; i++)
        if (b->layer_number[i] == layer_number) return read_layer(b, layer_number, v, err);
    return exf_fail(err, EXF_MODEL, "%s: holds no layer %d", exf_h5_path(b->h), layer_number);
}

exf_code exf_basis_get_norms(const exf_basis *b, int layer_number, exf_norm_sums *s, exf_err *err)
{
    return exf_norm_basis_read(s, b->h, &b->shape, layer_number, err);
}

/* Computes the digest of what the file holds. */
static exf_code find_digest(exf_basis *b, exf_err *err)
{
    exf_hash *h = NULL;
    exf_vector_sums v = {.n_pairs = 0};
    exf_norm_sums norms = {.q = 0};
    exf_code rc;
    EXF_TRY(exf_hash_new(&h, err));
    for (int i = 0; i < b->n_layers; i++) {
        EXF_TRY(read_layer(b, b->layer_number[i], &v, err));
        EXF_TRY(exf_basis_hash(h, b->layer_number[i], &v, err));
        exf_vector_sums_free(&v);
        EXF_TRY(exf_norm_basis_read(&norms, b->h, &b->shape, b->layer_number[i], err));
        EXF_TRY(exf_norm_basis_hash(h, &norms, err));
        exf_norm_sums_free(&norms);
    }
    rc = exf_hash_end(h, b->digest, err);
    h = NULL;
out:
    exf_hash_free(h);
    exf_vector_sums_free(&v);
    exf_norm_sums_free(&norms);
    return rc;
}

exf_code exf_basis_open(exf_basis *b, const char *path, exf_err *err)
{
    exf_code rc;
    memset(b, 0, sizeof *b);
    EXF_TRY(exf_artifact_open(&b->h, path, &exf_artifact_basis, NULL, &b->provenance, err));
    EXF_TRY(exf_run_shape_read(&b->shape, b->h, err));
    EXF_TRY(exf_layer_numbers_read(&b->layer_number, &b->n_layers, &b->provenance, b->h, err));
    EXF_TRY(exf_sequence_list_read(&b->sequences, b->shape.n_sequences, b->shape.n_tokens, b->h, err));
    EXF_TRY(find_digest(b, err));
    const char *said = exf_provenance_get(&b->provenance, EXF_BASIS_FACT);
    if (!said || strcmp(said, b->digest) != 0)
        rc = exf_fail(err, EXF_FORMAT, "%s: provenance says " EXF_BASIS_FACT " is %s, its contents have %s", path,
                      said ? said : "missing", b->digest);
out:
    if (rc != EXF_OK) exf_basis_close(b);
    return rc;
}

void exf_basis_close(exf_basis *b)
{
    exf_h5_close(b->h);
    exf_mem_free(b->layer_number);
    exf_sequence_list_free(&b->sequences);
    exf_provenance_free(&b->provenance);
    memset(b, 0, sizeof *b);
}

/* ---- does it belong to a run? --------------------------------------------------------------- */

#define MAKE_AGAIN "make it again from all of the data with this run's settings: exfold-calibrate RECIPE --basis-only"

/* Facts of model and settings decide what a basis is; who ran it, and on what, does not. */
static int is_choice_fact(const char *key)
{
    static const char *const not[] = {"accumulate.program", "accumulate.route_sample", "accumulate.version", "accumulate.commit",
                                      EXF_BASIS_FACT};
    for (size_t i = 0; i < sizeof not / sizeof *not; i++)
        if (strcmp(key, not[i]) == 0) return 0;
    if (exf_model_facts_key(key)) return 0;
    return exf_starts_with(key, "model.") || exf_starts_with(key, "accumulate.") || strcmp(key, "tokenizer.sha256") == 0;
}

static exf_code check_facts(const exf_basis *b, const exf_provenance *run, exf_err *err)
{
    for (int turn = 0; turn < 2; turn++) {
        const exf_provenance *p = turn ? run : &b->provenance;
        for (size_t i = 0; i < p->n; i++) {
            const char *ours = exf_provenance_get(run, p->key[i]), *theirs = exf_provenance_get(&b->provenance, p->key[i]);
            if (!is_choice_fact(p->key[i]) || (ours && theirs && strcmp(ours, theirs) == 0)) continue;
            return exf_fail(err, EXF_MODEL, "%s: %s is %s, of this run it is %s; " MAKE_AGAIN, exf_h5_path(b->h), p->key[i],
                            theirs ? theirs : "missing", ours ? ours : "missing");
        }
    }
    return EXF_OK;
}

static int by_digest(const void *a, const void *b)
{
    return memcmp(a, b, 32);
}

static exf_code check_sequences(const exf_basis *b, const exf_sequence_list *run, exf_err *err)
{
    const exf_sequence_list *all = &b->sequences;
    for (size_t i = 0; i < run->n; i++)
        if (!all->n || !bsearch(run->sha256[i], all->sha256, all->n, sizeof *all->sha256, by_digest))
            return exf_fail(err, EXF_MODEL,
                            "%s: was not made from a sequence of %d tokens (%02x%02x%02x%02x) that this run has, which has %zu, it "
                            "%zu; " MAKE_AGAIN, exf_h5_path(b->h), (int)run->length[i], run->sha256[i][0], run->sha256[i][1],
                            run->sha256[i][2], run->sha256[i][3], run->n, all->n);
    return EXF_OK;
}

exf_code exf_basis_check(const exf_basis *b, const exf_provenance *run, const int32_t *layer_number, int n_layers,
                         const exf_sequence_list *sequences, exf_err *err)
{
    exf_code rc;
    EXF_TRY(check_facts(b, run, err));
    if (b->n_layers != n_layers || memcmp(b->layer_number, layer_number, (size_t)n_layers * sizeof *layer_number) != 0)
        return exf_fail(err, EXF_MODEL, "%s: has %d layers from %d on, this run %d from %d on; " MAKE_AGAIN, exf_h5_path(b->h),
                        b->n_layers, (int)b->layer_number[0], n_layers, (int)layer_number[0]);
    rc = check_sequences(b, sequences, err);
out:
    return rc;
}
