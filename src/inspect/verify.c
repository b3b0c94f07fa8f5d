/* verify.c - see verify.h. */
#include "artifact/counts.h"
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

/* Of a capture; statistics and tables were checked as they were read. */
static exf_code check_counts(const exf_verify_file *x, exf_err *err)
{
    const exf_inspection *s = &x->inspection;
    size_t e = (size_t)s->shape.n_experts;
    exf_code rc = EXF_OK;
    for (int l = 0; rc == EXF_OK && s->kind == &exf_artifact_capture && l < s->n_layers; l++) {
        exf_layer_counts c = {.path = x->path, .layer = s->layer_number[l], .pairs = "pairs [", .experts = "experts [",
                              .run = &s->shape, .count = s->count + (size_t)l * e * e,
                              .expert_count = s->expert_count + (size_t)l * e, .empty_slots = s->empty_slots[l]};
        rc = exf_counts_check(&c, err);
    }
    if (rc != EXF_OK) return rc;
    return exf_verify_passed(x, err, "counts are those of all tokens' routes, pairs are mirrored and within their experts'");
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
        EXF_TRY(check_counts(x, err));
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
