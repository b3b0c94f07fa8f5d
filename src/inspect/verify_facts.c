/* verify_facts.c - provenance against contents, and file against file; see verify.h. */
#include "artifact/artifact_basis.h"
#include "artifact/provenance.h"
#include "base/text.h"
#include "inspect/verify_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- one file ------------------------------------------------------------------------- */

static exf_code check_number(const exf_verify_file *x, const char *key, int64_t have, exf_err *err)
{
    const char *text = exf_provenance_get(&x->inspection.provenance, key);
    int64_t n;
    if (!text || (exf_parse_i64(text, &n) && n == have)) return EXF_OK;
    return exf_fail(err, EXF_FORMAT, "%s: provenance says %s is %s, the file %lld", x->path, key, text, (long long)have);
}

static exf_code check_digests(const exf_verify_file *x, exf_err *err)
{
    const exf_provenance *p = &x->inspection.provenance;
    for (size_t i = 0; i < p->n; i++) {
        const char *v = p->value[i];
        int is_hash = exf_ends_with(p->key[i], "sha256") || exf_ends_with(p->key[i], "digest");
        if (!is_hash || strcmp(v, "none") == 0 || strcmp(v, "unpinned") == 0) continue;
        if (strlen(v) != 64 || strspn(v, "0123456789abcdef") != 64)
            return exf_fail(err, EXF_FORMAT, "%s: provenance says %s is %s, expected 64 hex digits", x->path, p->key[i], v);
    }
    return EXF_OK;
}

/* Facts of a stage that comes after this kind of file cannot be in it. */
static exf_code check_stages(const exf_verify_file *x, exf_err *err)
{
    static const struct {
        const exf_artifact *kind;
        const char *prefix;
    } later[] = {
        {&exf_artifact_capture, "accumulate."},
        {&exf_artifact_capture, "solve."},
        {&exf_artifact_statistics, "solve."},
        {&exf_artifact_basis, "solve."},
    };
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        for (size_t k = 0; later[i].kind == x->inspection.kind && k < x->inspection.provenance.n; k++)
            if (exf_starts_with(x->inspection.provenance.key[k], later[i].prefix))
                return exf_fail(err, EXF_FORMAT, "%s: holds %s, which cannot have the fact %s", x->path, x->inspection.kind->kind,
                                x->inspection.provenance.key[k]);
    return EXF_OK;
}

/* Tables say of which part of the data their statistics are. */
static exf_code check_part(const exf_verify_file *statistics, const exf_verify_file *tables, exf_err *err)
{
    const char *of = statistics->inspection.part, *said = tables->inspection.part;
    if (strcmp(of ? of : "", said ? said : "") == 0) return EXF_OK;
    return exf_fail(err, EXF_FORMAT, "%s: is of %s, %s, from which it was solved, is of %s; solve it again (exfold-solve)",
                    tables->path, said ? said : "all of its data", statistics->path, of ? of : "all of its data");
}

exf_code exf_verify_facts(const exf_verify_file *x, exf_err *err)
{
    exf_code rc;
    EXF_TRY(check_number(x, "data.tokens", x->inspection.shape.n_tokens, err));
    EXF_TRY(check_number(x, "data.sequences", x->inspection.shape.n_sequences, err));
    EXF_TRY(check_digests(x, err));
    EXF_TRY(check_stages(x, err));
    EXF_TRY(exf_verify_passed(x, err, "provenance fits the contents, facts: %zu", x->inspection.provenance.n));
    if (x->inspection.part) rc = exf_verify_passed(x, err, "holds a part: %s", x->inspection.part);
out:
    return rc;
}

/* ---- two files --------------------------------------------------------------------------- */

/* Of several captures each has its own data, and may have spelled the same layers in another way. */
static int tells_of_part(const char *key)
{
    return exf_starts_with(key, "data.") || strcmp(key, "capture.layers") == 0 || exf_weights_facts_key(key);
}

/* Facts of the earlier file are in the later; those of a part alone only if it is the whole. */
static exf_code check_inherited(const exf_verify_file *a, const exf_verify_file *b, int whole, exf_err *err)
{
    const exf_provenance *p = &a->inspection.provenance;
    exf_code rc = exf_weights_facts_same(p, a->path, &b->inspection.provenance, b->path, err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < p->n; i++) {
        const char *other = exf_provenance_get(&b->inspection.provenance, p->key[i]);
        if ((!whole && tells_of_part(p->key[i])) || (other && strcmp(other, p->value[i]) == 0)) continue;
        return exf_fail(err, EXF_FORMAT, "%s: provenance says %s is %s, %s, from which it should come, says %s", b->path, p->key[i],
                        other ? other : "nothing", a->path, p->value[i]);
    }
    return EXF_OK;
}

static exf_code check_layers(const exf_verify_file *a, const exf_verify_file *b, exf_err *err)
{
    const exf_inspection *s = &a->inspection, *t = &b->inspection;
    if (s->shape.n_experts != t->shape.n_experts || s->n_layers != t->n_layers)
        return exf_fail(err, EXF_FORMAT, "%s: %d layers of %lld experts, %s has %d of %lld", b->path, t->n_layers,
                        (long long)t->shape.n_experts, a->path, s->n_layers, (long long)s->shape.n_experts);
    if (memcmp(s->layer_number, t->layer_number, (size_t)s->n_layers * sizeof *s->layer_number) != 0)
        return exf_fail(err, EXF_FORMAT, "%s: other layer numbers than %s", b->path, a->path);
    return EXF_OK;
}

static exf_code check_counts(const exf_verify_file *a, const exf_verify_file *b, exf_err *err)
{
    const exf_inspection *s = &a->inspection, *t = &b->inspection;
    size_t e = (size_t)s->shape.n_experts, l = (size_t)s->n_layers;
    if (memcmp(s->count, t->count, l * e * e * sizeof *s->count) != 0 ||
        memcmp(s->expert_count, t->expert_count, l * e * sizeof *s->expert_count) != 0)
        return exf_fail(err, EXF_FORMAT, "%s: other token counts than %s", b->path, a->path);
    return EXF_OK;
}

static exf_code check_norms(const exf_verify_file *a, const exf_verify_file *b, exf_err *err)
{
    size_t e = (size_t)a->inspection.shape.n_experts;
    for (size_t i = 0; i < (size_t)a->inspection.n_layers * e; i++)
        if (a->inspection.expert_count[i] && a->inspection.norms[i] != b->inspection.norms[i])
            return exf_fail(err, EXF_FORMAT, "%s: layer %d: expert %zu has norm %.9g, the sums of %s give %.9g", b->path,
                            (int)b->inspection.layer_number[i / e], i % e, (double)b->inspection.norms[i], a->path,
                            (double)a->inspection.norms[i]);
    return EXF_OK;
}

static exf_code verify_tables_of(const exf_verify_file *statistics, const exf_verify_file *tables, exf_err *err)
{
    const char *named = exf_provenance_get(&tables->inspection.provenance, "solve.statistics_digest");
    exf_code rc;
    if (!named || strcmp(named, statistics->digest) != 0)
        return exf_fail(err, EXF_FORMAT, "%s: provenance says solve.statistics_digest is %s, %s has %s", tables->path,
                        named ? named : "nothing", statistics->path, statistics->digest);
    EXF_TRY(check_inherited(statistics, tables, 1, err));
    EXF_TRY(check_part(statistics, tables, err));
    EXF_TRY(check_layers(statistics, tables, err));
    EXF_TRY(check_counts(statistics, tables, err));
    EXF_TRY(check_norms(statistics, tables, err));
    EXF_TRY(exf_verify_passed(tables, err, "was solved from %s: digest, facts, counts and norms agree", statistics->path));
    rc = exf_verify_solved(statistics, tables, err);
out:
    return rc;
}

/* The capture's tokens are all of the statistics' or one of their parts. */
static int is_part(const exf_provenance *whole, const char *digest)
{
    for (size_t i = 0; i < whole->n; i++)
        if (exf_starts_with(whole->key[i], "data.") && strcmp(whole->value[i], digest) == 0) return 1;
    return 0;
}

static int by_digest(const void *a, const void *b)
{
    return memcmp(a, b, 32);
}

/* Every sequence of the capture is one of the statistics'. */
static exf_code check_sequences(const exf_verify_file *capture, const exf_verify_file *statistics, exf_err *err)
{
    const exf_sequence_list *part = &capture->inspection.sequences, *all = &statistics->inspection.sequences;
    for (size_t i = 0; i < part->n; i++)
        if (!bsearch(part->sha256[i], all->sha256, all->n, sizeof *all->sha256, by_digest))
            return exf_fail(err, EXF_FORMAT, "%s: does not hold sequence %zu (of %d tokens) of %s", statistics->path, i,
                            (int)part->length[i], capture->path);
    return EXF_OK;
}

/* Files of version 1 know no sequences, but name the digests of their tokens. */
static exf_code check_tokens(const exf_verify_file *capture, const exf_verify_file *statistics, exf_err *err)
{
    const exf_provenance *p = &capture->inspection.provenance;
    const char *tokens = exf_provenance_get(p, "data.tokens_digest");
    if (!tokens) tokens = exf_provenance_get(p, "data.moe_inputs_sha256");
    if (tokens && is_part(&statistics->inspection.provenance, tokens)) return EXF_OK;
    return exf_fail(err, EXF_FORMAT, "%s: its data does not name the tokens of %s, %s", statistics->path, capture->path,
                    tokens ? tokens : "which tell no digest");
}

static exf_code verify_statistics_of(const exf_verify_file *capture, const exf_verify_file *statistics, exf_err *err)
{
    exf_code rc = check_inherited(capture, statistics, 0, err);
    if (rc == EXF_OK) rc = check_layers(capture, statistics, err);
    if (rc != EXF_OK) return rc;
    int known = capture->inspection.sequences.length && statistics->inspection.sequences.length;
    rc = known ? check_sequences(capture, statistics, err) : check_tokens(capture, statistics, err);
    return rc == EXF_OK ? exf_verify_passed(statistics, err, "adds up %s: model, run and tokens agree", capture->path) : rc;
}

/* Statistics with vector sums that are beside a basis were added up over it. */
static exf_code verify_statistics_over(const exf_verify_file *basis, const exf_verify_file *statistics, exf_err *err)
{
    const char *ours = exf_provenance_get(&basis->inspection.provenance, EXF_BASIS_FACT),
               *theirs = exf_provenance_get(&statistics->inspection.provenance, EXF_BASIS_FACT);
    if (!theirs) return EXF_OK;
    if (strcmp(ours, theirs) != 0)
        return exf_fail(err, EXF_FORMAT, "%s: was added up over basis %.16s..., %s is %.16s...", statistics->path, theirs,
                        basis->path, ours);
    return exf_verify_passed(statistics, err, "was added up over %s", basis->path);
}

exf_code exf_verify_chain(const exf_verify_file *earlier, const exf_verify_file *later, exf_err *err)
{
    const exf_artifact *from = earlier->inspection.kind, *to = later->inspection.kind;
    if (from == &exf_artifact_statistics && to == &exf_artifact_tables) return verify_tables_of(earlier, later, err);
    if (from == &exf_artifact_basis && to == &exf_artifact_statistics) return verify_statistics_over(earlier, later, err);
    if (from == &exf_artifact_capture && to == &exf_artifact_statistics) return verify_statistics_of(earlier, later, err);
    return EXF_OK;
}
