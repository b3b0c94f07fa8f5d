/* artifact_basis.c - the file format `basis`, version 3, the first; see artifact_basis.h.
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
 *   /origin                        as in statistics
 * The fact accumulate.basis_digest is the SHA-256 over all layers' number, P, H, R (u64), pair, basis and grid,
 * little endian.  The facts accumulate.samples, .seed, .vector_pairs, .ridge, .clip say how it was chosen. */
#include "artifact/artifact_basis.h"

#include "artifact/provenance.h"
#include "base/mem.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const exf_artifact exf_artifact_basis = {.kind = "basis", .version = 3, .min_reader = 3};

enum { PATH_LEN = 64 };

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

/* ---- reading a layer ------------------------------------------------------------------- */

static exf_code read_part(const exf_basis *b, const char *group, const char *name, exf_dtype dtype, const int64_t shape[2],
                          void *data, exf_err *err)
{
    char path[PATH_LEN + 16];
    exf_tensor t = {.name = path, .dtype = dtype, .rank = 2, .shape = {shape[0], shape[1]}};
    snprintf(path, sizeof path, "%s/%s", group, name);
    return exf_h5_read(b->h, &t, data, err);
}

static exf_code check_pairs(const exf_basis *b, const char *group, const exf_vector_sums *v, exf_err *err)
{
    int64_t e = b->shape.n_experts, before = -1;
    for (int64_t i = 0; i < v->n_pairs; i++) {
        const int32_t *p = v->pair + 2 * i;
        int64_t key = p[0] * e + p[1];
        if (p[0] < 0 || p[0] >= e || p[1] < 0 || p[1] >= e || p[0] == p[1] || key <= before)
            return exf_fail(err, EXF_FORMAT, "%s: %s/pair[%lld] is (%d, %d), expected ascending (source, target)",
                            exf_h5_path(b->h), group, (long long)i, (int)p[0], (int)p[1]);
        before = key;
    }
    for (int64_t i = 0; v->basis && i < (int64_t)v->d_model * v->rank; i++)
        if (!(fabs(v->basis[i]) <= 1.0001))
            return exf_fail(err, EXF_FORMAT, "%s: %s/basis: element %lld is %g, expected a coordinate of a unit vector",
                            exf_h5_path(b->h), group, (long long)i, v->basis[i]);
    return exf_grids_check(v, exf_h5_path(b->h), group, err);
}

/* Allocates a layer of the sizes that its datasets have. */
static exf_code make_room(const exf_basis *b, const char *group, exf_vector_sums *v, exf_err *err)
{
    char path[PATH_LEN + 16];
    exf_tensor pair, basis = {.rank = 2, .shape = {0, 0}};
    int64_t e = b->shape.n_experts, h = b->shape.d_model;
    int has_basis;
    exf_code rc;
    snprintf(path, sizeof path, "%s/pair", group);
    EXF_TRY(exf_h5_describe(b->h, path, &pair, err));
    snprintf(path, sizeof path, "%s/basis", group);
    EXF_TRY(exf_h5_exists(b->h, path, &has_basis, err));
    if (has_basis) EXF_TRY(exf_h5_describe(b->h, path, &basis, err));
    if (pair.rank != 2 || pair.shape[0] < 1 || pair.shape[0] > e * (e - 1) || h > INT32_MAX || basis.rank != 2 ||
        basis.shape[1] > h || (has_basis && basis.shape[1] < 1))
        return exf_fail(err, EXF_FORMAT,
                        "%s: %s has %lld pairs and a basis of %lld columns, which %lld experts of width %lld forbid",
                        exf_h5_path(b->h), group, (long long)pair.shape[0], (long long)basis.shape[1], (long long)e, (long long)h);
    if (has_basis) {
        exf_tensor t = {.name = path, .dtype = EXF_DT_F64, .rank = 2, .shape = {h, basis.shape[1]}};
        EXF_TRY(exf_h5_expect(b->h, &t, err));
    }
    rc = exf_vector_sums_new_choice(v, pair.shape[0], (int)h, (int)basis.shape[1], err);
out:
    return rc;
}

static exf_code read_layer(const exf_basis *b, int layer_number, exf_vector_sums *v, exf_err *err)
{
    char group[PATH_LEN];
    int found;
    exf_code rc;
    *v = (exf_vector_sums){.d_model = (int)b->shape.d_model};
    snprintf(group, sizeof group, "/layers/%d/vectors", layer_number);
    EXF_TRY(exf_h5_exists(b->h, group, &found, err));
    if (!found) return EXF_OK;
    EXF_TRY(make_room(b, group, v, err));
    EXF_TRY(read_part(b, group, "pair", EXF_DT_I32, (int64_t[2]){v->n_pairs, 2}, v->pair, err));
    if (v->rank) {
        EXF_TRY(read_part(b, group, "basis", EXF_DT_F64, (int64_t[2]){v->d_model, v->rank}, v->basis, err));
        EXF_TRY(read_part(b, group, "grid", EXF_DT_I32, (int64_t[2]){v->n_pairs, EXF_N_GRIDS}, v->grid, err));
    }
    rc = check_pairs(b, group, v, err);
out:
    if (rc != EXF_OK) exf_vector_sums_free(v);
    return rc;
}

exf_code exf_basis_get(const exf_basis *b, int layer_number, exf_vector_sums *v, exf_err *err)
{
    memset(v, 0, sizeof *v);
    for (int i = 0; i < b->n_layers; i++)
        if (b->layer_number[i] == layer_number) return read_layer(b, layer_number, v, err);
    return exf_fail(err, EXF_MODEL, "%s: holds no layer %d", exf_h5_path(b->h), layer_number);
}

/* ---- opening ------------------------------------------------------------------------------ */

/* Computes the digest of what the file holds. */
static exf_code find_digest(exf_basis *b, exf_err *err)
{
    exf_hash *h = NULL;
    exf_vector_sums v = {.n_pairs = 0};
    exf_code rc;
    EXF_TRY(exf_hash_new(&h, err));
    for (int i = 0; i < b->n_layers; i++) {
        EXF_TRY(read_layer(b, b->layer_number[i], &v, err));
        EXF_TRY(exf_basis_hash(h, b->layer_number[i], &v, err));
        exf_vector_sums_free(&v);
    }
    rc = exf_hash_end(h, b->digest, err);
    h = NULL;
out:
    exf_hash_free(h);
    exf_vector_sums_free(&v);
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
static int decides(const char *key)
{
    static const char *const not[] = {"accumulate.program", "accumulate.route_sample", "accumulate.version", "accumulate.commit",
                                      EXF_BASIS_FACT};
    for (size_t i = 0; i < sizeof not / sizeof *not; i++)
        if (strcmp(key, not[i]) == 0) return 0;
    if (exf_weights_facts_key(key)) return 0;
    return exf_starts_with(key, "model.") || exf_starts_with(key, "accumulate.") || strcmp(key, "tokenizer.sha256") == 0;
}

static exf_code check_facts(const exf_basis *b, const exf_provenance *run, exf_err *err)
{
    for (int turn = 0; turn < 2; turn++) {
        const exf_provenance *p = turn ? run : &b->provenance;
        for (size_t i = 0; i < p->n; i++) {
            const char *ours = exf_provenance_get(run, p->key[i]), *theirs = exf_provenance_get(&b->provenance, p->key[i]);
            if (!decides(p->key[i]) || (ours && theirs && strcmp(ours, theirs) == 0)) continue;
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
