/* verify.c - checks each file by itself (verify_file.c), then files of one chain against each other: digests, facts and counts, and
 * tables solved again from their statistics; see verify.h. */
#include "inspect/verify_internal.h"

#include "artifact/data.h"
#include "artifact/provenance.h"
#include "artifact/tables.h"
#include "base/log.h"
#include "base/mem.h"
#include "solve/solve.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- solved again ------------------------------------------------------------------------ */

enum { VALUE = 32 };

static void show_value(char out[VALUE], const exf_tensor *t, size_t i)
{
    switch (t->dtype) {
    case EXF_DT_F32: snprintf(out, VALUE, "%.9g", (double)((const float *)t->data)[i]); break;
    case EXF_DT_F64: snprintf(out, VALUE, "%.17g", ((const double *)t->data)[i]); break;
    case EXF_DT_I32: snprintf(out, VALUE, "%" PRId32, ((const int32_t *)t->data)[i]); break;
    default: snprintf(out, VALUE, "%" PRIu64, ((const uint64_t *)t->data)[i]); break;
    }
}

/* Refuses element i of an array: says where it stands, "coeff[3, 5, 2]", both values, and whether another program solved. */
static exf_code refuse_number(const exf_verified_file *statistics, const exf_verified_file *tables, const exf_tensor *have,
                              const exf_tensor *want, size_t i, exf_err *err)
{
    const exf_provenance *p = &tables->inspection.provenance;
    const char *version = exf_provenance_get(p, "solve.version"), *commit = exf_provenance_get(p, "solve.commit");
    char is[VALUE], gives[VALUE];
    exf_text place = {0};
    size_t below = 1;
    show_value(is, have, i);
    show_value(gives, want, i);
    for (int a = 1; a < have->rank; a++) below *= (size_t)have->shape[a];
    for (int a = 0; a < have->rank; a++) {
        exf_text_appendf(&place, "%s%zu", a ? ", " : "[", i / below % (size_t)have->shape[a]);
        if (a + 1 < have->rank) below /= (size_t)have->shape[a + 1];
    }
    exf_text_appendf(&place, "] is %s, %s solved again with the recorded settings gives %s", is, statistics->path, gives);
    if (!version || !commit || strcmp(version, exf_release()) != 0 || strcmp(commit, exf_commit()) != 0)
        exf_text_appendf(&place, "; they were solved by exfold %s (commit %s), this is %s (commit %s)", version ? version : "?",
                         commit ? commit : "?", exf_release(), exf_commit());
    exf_code rc = exf_text_end(&place, err);
    if (rc == EXF_OK) rc = exf_fail(err, EXF_FORMAT, "%s: %s%s", tables->path, have->name, place.s);
    exf_text_free(&place);
    return rc;
}

static const exf_tensor *find_array(const exf_table_list *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->name[i], name) == 0) return &l->tensor[i];
    return NULL;
}

/* Compares all arrays; tables of an older version lack some that are solved today. */
static exf_code compare_lists(const exf_verified_file *statistics, const exf_verified_file *tables, const exf_table_list *have,
                              const exf_table_list *want, exf_err *err)
{
    int is_old = tables->inspection.version < exf_artifact_tables.version;
    for (size_t i = 0; i < want->n; i++) {
        const exf_tensor *t = find_array(have, want->name[i]);
        if (!t && is_old) continue;
        if (!t)
            return exf_fail(err, EXF_FORMAT, "%s: lacks %s, which %s gives when it is solved again", tables->path, want->name[i],
                            statistics->path);
        const exf_tensor *again = &want->tensor[i];
        size_t size = exf_dtype_bits(t->dtype) / 8, n = exf_tensor_bytes(t) / size;
        if (t->dtype != again->dtype || t->rank != again->rank || memcmp(t->shape, again->shape, sizeof t->shape) != 0)
            return exf_fail(err, EXF_FORMAT, "%s: %s has another shape than %s gives when it is solved again", tables->path,
                            t->name, statistics->path);
        for (size_t k = 0; k < n; k++)
            if (memcmp((const char *)t->data + k * size, (const char *)again->data + k * size, size) != 0)
                return refuse_number(statistics, tables, t, again, k, err);
    }
    for (size_t i = 0; i < have->n; i++)
        if (!find_array(want, have->name[i]))
            return exf_fail(err, EXF_FORMAT, "%s: holds %s, which %s does not give when it is solved again", tables->path,
                            have->name[i], statistics->path);
    return EXF_OK;
}

/* Compares the digests of the sequences, which tables before version 5 lack. */
static exf_code compare_sequences(const exf_tables *have, const exf_tables *want, const exf_verified_file *tables,
                                  const exf_verified_file *statistics, exf_err *err)
{
    size_t n = (size_t)have->shape.n_sequences;
    if (!have->sequence_digest && (!want->sequence_digest || tables->inspection.version < 5)) return EXF_OK;
    if (have->sequence_digest && want->sequence_digest && have->shape.n_sequences == want->shape.n_sequences &&
        memcmp(have->sequence_digest, want->sequence_digest, n * sizeof *have->sequence_digest) == 0) {
        if (have->sketches.n == 0 || exf_sketch_set_same(&have->sketches, &want->sketches)) return EXF_OK;
        return exf_fail(err, EXF_FORMAT, "%s: /document_sketches are not those of %s", tables->path, statistics->path);
    }
    return exf_fail(err, EXF_FORMAT, "%s: /sequence_digests are not those of the %lld sequences of %s", tables->path,
                    (long long)want->shape.n_sequences, statistics->path);
}

/* Solves the statistics again with the settings of the tables and compares every number, so that a changed number is found
 * however well it fits the others. */
static exf_code check_solved(const exf_verified_file *statistics, const exf_verified_file *tables, exf_err *err)
{
    exf_tables have = {.n_layers = 0}, want = {.n_layers = 0};
    exf_table_list a = {.n = 0}, b = {.n = 0};
    exf_code rc;
    EXF_TRY(exf_tables_read(&have, tables->path, err));
    EXF_TRY(exf_tables_read_vectors(&have, tables->path, err));
    EXF_TRY(exf_solve_again(&have, tables->path, statistics->path, &want, err));
    EXF_TRY(compare_sequences(&have, &want, tables, statistics, err));
    EXF_TRY(exf_table_list_make(&a, &have, 1, err));
    EXF_TRY(exf_table_list_make(&b, &want, 1, err));
    EXF_TRY(compare_lists(statistics, tables, &a, &b, err));
    rc = exf_verify_passed(tables, err, "%s solved again with the recorded settings gives the same bits, arrays: %zu",
                           statistics->path, b.n);
out:
    exf_table_list_free(&a);
    exf_table_list_free(&b);
    exf_tables_free(&have);
    exf_tables_free(&want);
    return rc;
}

/* ---- two files --------------------------------------------------------------------------- */

/* Checks that facts of the earlier file are in the later; those of a part alone only if it is the whole: of several captures each
 * has its own data, and may have spelled the same layers in another way. */
static exf_code check_inherited(const exf_verified_file *a, const exf_verified_file *b, int whole, exf_err *err)
{
    const exf_provenance *p = &a->inspection.provenance;
    exf_code rc = exf_model_facts_same(p, a->path, &b->inspection.provenance, b->path, err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < p->n; i++) {
        const char *other = exf_provenance_get(&b->inspection.provenance, p->key[i]);
        int is_of_part = exf_starts_with(p->key[i], "data.") || strcmp(p->key[i], "capture.layers") == 0 ||
                         exf_model_facts_key(p->key[i]);
        if ((!whole && is_of_part) || (other && strcmp(other, p->value[i]) == 0)) continue;
        return exf_fail(err, EXF_FORMAT, "%s: provenance says %s is %s, %s, from which it should come, says %s", b->path, p->key[i],
                        other ? other : "nothing", a->path, p->value[i]);
    }
    return EXF_OK;
}

static exf_code compare_layers(const exf_verified_file *a, const exf_verified_file *b, exf_err *err)
{
    const exf_inspection *s = &a->inspection, *t = &b->inspection;
    if (s->shape.n_experts != t->shape.n_experts || s->n_layers != t->n_layers)
        return exf_fail(err, EXF_FORMAT, "%s: %d layers of %lld experts, %s has %d of %lld", b->path, t->n_layers,
                        (long long)t->shape.n_experts, a->path, s->n_layers, (long long)s->shape.n_experts);
    if (memcmp(s->layer_number, t->layer_number, (size_t)s->n_layers * sizeof *s->layer_number) != 0)
        return exf_fail(err, EXF_FORMAT, "%s: other layer numbers than %s", b->path, a->path);
    return EXF_OK;
}

static exf_code verify_tables_of(const exf_verified_file *statistics, const exf_verified_file *tables, exf_err *err)
{
    const exf_inspection *s = &statistics->inspection, *t = &tables->inspection;
    const char *named = exf_provenance_get(&t->provenance, "solve.statistics_digest");
    size_t e = (size_t)s->shape.n_experts, l = (size_t)s->n_layers;
    exf_code rc;
    if (!named || strcmp(named, statistics->digest) != 0)
        return exf_fail(err, EXF_FORMAT, "%s: provenance says solve.statistics_digest is %s, %s has %s", tables->path,
                        named ? named : "nothing", statistics->path, statistics->digest);
    EXF_TRY(check_inherited(statistics, tables, 1, err));
    if (strcmp(s->part ? s->part : "", t->part ? t->part : "") != 0) /* of the data */
        return exf_fail(err, EXF_FORMAT, "%s: is of %s, %s, from which it was solved, is of %s; solve it again (exfold-solve)",
                        tables->path, t->part ? t->part : "all of its data", statistics->path,
                        s->part ? s->part : "all of its data");
    EXF_TRY(compare_layers(statistics, tables, err));
    if (memcmp(s->count, t->count, l * e * e * sizeof *s->count) != 0 ||
        memcmp(s->expert_count, t->expert_count, l * e * sizeof *s->expert_count) != 0)
        return exf_fail(err, EXF_FORMAT, "%s: other token counts than %s", tables->path, statistics->path);
    for (size_t i = 0; i < l * e; i++)
        if (s->expert_count[i] && s->norms[i] != t->norms[i])
            return exf_fail(err, EXF_FORMAT, "%s: layer %d: expert %zu has norm %.9g, the sums of %s give %.9g", tables->path,
                            (int)t->layer_number[i / e], i % e, (double)t->norms[i], statistics->path, (double)s->norms[i]);
    EXF_TRY(exf_verify_passed(tables, err, "was solved from %s: digest, facts, counts and norms agree", statistics->path));
    rc = check_solved(statistics, tables, err);
out:
    return rc;
}

static int by_digest(const void *a, const void *b)
{
    return memcmp(a, b, 32);
}

static exf_code verify_statistics_of(const exf_verified_file *capture, const exf_verified_file *statistics, exf_err *err)
{
    const exf_sequence_list *part = &capture->inspection.sequences, *all = &statistics->inspection.sequences;
    const exf_provenance *own = &capture->inspection.provenance, *whole = &statistics->inspection.provenance;
    exf_code rc;
    EXF_TRY(check_inherited(capture, statistics, 0, err));
    EXF_TRY(compare_layers(capture, statistics, err));
    if (part->length && all->length) {
        for (size_t i = 0; i < part->n; i++)
            if (!bsearch(part->sha256[i], all->sha256, all->n, sizeof *all->sha256, by_digest))
                return exf_fail(err, EXF_FORMAT, "%s: does not hold sequence %zu (of %d tokens) of %s", statistics->path, i,
                                (int)part->length[i], capture->path);
    } else { /* files of version 1 know no sequences, but name the digests of their tokens */
        const char *tokens = exf_provenance_get(own, "data.tokens_digest");
        int found = 0;
        if (!tokens) tokens = exf_provenance_get(own, "data.moe_inputs_sha256");
        for (size_t i = 0; tokens && i < whole->n; i++)
            found |= exf_starts_with(whole->key[i], "data.") && strcmp(whole->value[i], tokens) == 0;
        if (!found)
            return exf_fail(err, EXF_FORMAT, "%s: its data does not name the tokens of %s, %s", statistics->path, capture->path,
                            tokens ? tokens : "which tell no digest");
    }
    rc = exf_verify_passed(statistics, err, "adds up %s: model, run and tokens agree", capture->path);
out:
    return rc;
}

exf_code exf_verify(const char *const *paths, size_t n, exf_verify_callback held, void *self, exf_err *err)
{
    exf_verified_file *x = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&x, n, sizeof *x, "files", err));
    for (size_t i = 0; i < n; i++) {
        x[i].path = paths[i];
        x[i].held = held;
        x[i].self = self;
        EXF_TRY(exf_verify_file(&x[i], err));
    }
    for (size_t i = 0; i < n; i++) /* each pair of one chain, the earlier file first */
        for (size_t k = 0; k < n; k++) {
            const exf_artifact *from = x[i].inspection.kind, *to = x[k].inspection.kind;
            if (from == &exf_artifact_statistics && to == &exf_artifact_tables) EXF_TRY(verify_tables_of(&x[i], &x[k], err));
            if (from == &exf_artifact_capture && to == &exf_artifact_statistics) EXF_TRY(verify_statistics_of(&x[i], &x[k], err));
        }
out:
    for (size_t i = 0; x && i < n; i++) exf_inspection_free(&x[i].inspection);
    exf_mem_free(x);
    return rc;
}
