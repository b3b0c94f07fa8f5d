/* verify.c - see verify.h. */
#include "base/mem.h"
#include "base/text.h"
#include "inspect/verify_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

exf_code exf_verify_passed(const exf_verify_file *x, exf_err *err, const char *fmt, ...)
{
    exf_text sentence = {0};
    exf_code rc;
    va_list va;
    EXF_TRY(exf_text_addf(&sentence, err, "%s: ", x->path));
    va_start(va, fmt);
    rc = exf_text_addv(&sentence, err, fmt, va);
    va_end(va);
    if (rc == EXF_OK) rc = x->held(x->self, sentence.s, err);
out:
    exf_text_free(&sentence);
    return rc;
}

/* ---- one file ------------------------------------------------------------------------ */

static exf_code verify_structure(exf_verify_file *x, exf_err *err)
{
    exf_h5 *h = NULL;
    const exf_artifact *kind;
    int64_t version;
    exf_code rc;
    EXF_TRY(exf_artifact_open(&h, x->path, NULL, &kind, NULL, err));
    EXF_TRY(exf_h5_get_i64(h, "/", "exfold_version", &version, err));
    if (version < 1) {
        rc = exf_fail(err, EXF_FORMAT, "%s: exfold_version is %lld, expected at least 1", x->path, (long long)version);
        goto out;
    }
    EXF_TRY(exf_verify_passed(x, err, "holds %s, version %" PRId64 ", which this program reads", kind->kind, version));
    EXF_TRY(exf_h5_digest(h, x->digest, err));
    EXF_TRY(exf_verify_passed(x, err, "every object can be read, digest %s", x->digest));
out:
    exf_h5_close(h);
    return rc;
}

static exf_code check_mirrored(const exf_verify_file *x, size_t l, exf_err *err)
{
    size_t e = (size_t)x->inspection.shape.n_experts;
    const uint64_t *count = x->inspection.count + l * e * e;
    for (size_t s = 0; s < e; s++)
        for (size_t t = 0; t <= s; t++)
            if (count[s * e + t] != count[t * e + s] || (s == t && count[s * e + t]))
                return exf_fail(err, EXF_FORMAT,
                                "%s: layer %d: %" PRIu64 " tokens behind %zu -> %zu, %" PRIu64 " behind the reverse%s", x->path,
                                (int)x->inspection.layer_number[l], count[s * e + t], s, t, count[t * e + s],
                                s == t ? ", expected 0 on the diagonal" : "");
    return EXF_OK;
}

/* Co-routed pairs: no pair more often than its experts, no more routes than tokens x top-k. */
static exf_code check_routes(const exf_verify_file *x, size_t l, exf_err *err)
{
    const exf_inspection *s = &x->inspection;
    size_t e = (size_t)s->shape.n_experts;
    uint64_t all = 0, most = (uint64_t)s->shape.n_tokens * (uint64_t)s->shape.top_k;
    for (size_t i = 0; i < e; i++) {
        all += s->expert_count[l * e + i];
        for (size_t t = 0; t < e; t++)
            if (s->count[(l * e + i) * e + t] > s->expert_count[l * e + i])
                return exf_fail(err, EXF_FORMAT, "%s: layer %d: %" PRIu64 " tokens behind %zu -> %zu, but expert %zu has %" PRIu64,
                                x->path, (int)s->layer_number[l], s->count[(l * e + i) * e + t], i, t, i,
                                s->expert_count[l * e + i]);
    }
    if (all > most)
        return exf_fail(err, EXF_FORMAT, "%s: layer %d: %" PRIu64 " routes, but %lld tokens have %lld each", x->path,
                        (int)s->layer_number[l], all, (long long)s->shape.n_tokens, (long long)s->shape.top_k);
    return EXF_OK;
}

exf_code exf_verify_counts(const exf_verify_file *x, exf_err *err)
{
    const char *pairs = exf_provenance_get(&x->inspection.provenance, "accumulate.pairs");
    int corouted = !pairs || strcmp(pairs, "corouted") == 0;
    exf_code rc = EXF_OK;
    for (size_t l = 0; rc == EXF_OK && l < (size_t)x->inspection.n_layers; l++) {
        rc = check_mirrored(x, l, err);
        if (rc == EXF_OK && corouted) rc = check_routes(x, l, err);
    }
    if (rc != EXF_OK) return rc;
    return exf_verify_passed(x, err,
                            corouted ? "counts are mirrored and within each expert's and the run's tokens" : "counts are mirrored");
}

static exf_code verify_file(exf_verify_file *x, exf_err *err)
{
    exf_code rc;
    EXF_TRY(verify_structure(x, err));
    EXF_TRY(exf_inspection_read_any(&x->inspection, x->path, NULL, err));
    EXF_TRY(exf_verify_passed(x, err,
                             "structure, ranges and sentinels are as specified, all numbers finite; layers: %d, experts: %lld",
                             x->inspection.n_layers, (long long)x->inspection.shape.n_experts));
    if (x->inspection.kind == &exf_artifact_basis)
        EXF_TRY(exf_verify_passed(x, err, "its digest is that of its pairs, vectors and grids"));
    else
        EXF_TRY(exf_verify_counts(x, err));
    if (x->inspection.kind == &exf_artifact_tables) EXF_TRY(exf_verify_tables(x, err));
    if (x->inspection.kind == &exf_artifact_statistics) EXF_TRY(exf_verify_statistics(x, err));
    EXF_TRY(exf_verify_facts(x, err));
out:
    return rc;
}

exf_code exf_verify(const char *const *paths, size_t n, exf_verify_callback held, void *self, exf_err *err)
{
    exf_verify_file *x = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&x, n, sizeof *x, "files", err));
    for (size_t i = 0; i < n; i++) {
        x[i].path = paths[i];
        x[i].held = held;
        x[i].self = self;
        EXF_TRY(verify_file(&x[i], err));
    }
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++) EXF_TRY(exf_verify_chain(&x[i], &x[k], err));
out:
    for (size_t i = 0; x && i < n; i++) exf_inspection_free(&x[i].inspection);
    exf_mem_free(x);
    return rc;
}
