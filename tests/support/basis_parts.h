/* basis_parts.h - runs of a golden over a basis that was made first: as a whole, and sequence by sequence. */
#ifndef EXF_TESTS_BASIS_PARTS_H
#define EXF_TESTS_BASIS_PARTS_H
#include "tests/support/digest_fixtures.h"
#include "tests/support/fixtures.h"
#include "tests/support/golden_run.h"
#include "tests/support/statistics_run.h"

#include "accumulate/accumulate.h"

#include <stdio.h>

enum { BASIS_PARTS = 16, BASIS_PATH = 600 };

/* The digests of statistics of the batch: of an ordinary run, and of one that was given the basis that a first run made. */
static inline exf_code statistics_over_a_basis(const exf_model *m, const exf_batch *batch, const exf_forward_options *o,
                                               const exf_accumulate_options *options, const char *own, const char *basis_file,
                                               const char *given, char digest[2][EXF_SHA256_HEX], exf_err *err)
{
    exf_accumulate_options first = *options, second = *options;
    exf_basis basis = {.h = NULL};
    exf_forward_report report;
    exf_code rc;
    first.basis_only = 1;
    EXF_TRY(statistics_run_of(m, batch, o, options, own, &report, err));
    EXF_TRY(statistics_run_of(m, batch, o, &first, basis_file, &report, err));
    EXF_TRY(exf_basis_open(&basis, basis_file, err));
    second.basis = &basis;
    EXF_TRY(statistics_run_of(m, batch, o, &second, given, &report, err));
    EXF_TRY(exf_artifact_digest(own, NULL, digest[0], err));
    EXF_TRY(exf_artifact_digest(given, NULL, digest[1], err));
out:
    exf_basis_close(&basis);
    return rc;
}

/* The basis of all sequences made first, and each sequence added up over it alone: merged, the bytes of one run. */
static inline void ck_sequences_add_over_a_basis(const char *family, const exf_forward_options *o,
                                                 const exf_accumulate_options *options)
{
    golden_case c;
    exf_err e;
    exf_basis basis;
    exf_forward_report report;
    exf_accumulate_options over = *options;
    char digest[2][EXF_SHA256_HEX], own[BASIS_PATH], file[BASIS_PATH], path[BASIS_PARTS][BASIS_PATH];
    const char *paths[BASIS_PARTS];
    exf_log_setup("check", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    golden_open(&c, family);
    snprintf(own, sizeof own, "%s", exf_scratch("own.h5"));
    snprintf(file, sizeof file, "%s", exf_scratch("basis.h5"));
    ck_ok(statistics_over_a_basis(c.model, &c.batch, o, options, own, file, exf_scratch("given.h5"), digest, &e), e);
    ck_assert_str_eq(digest[0], digest[1]);
    ck_ok(exf_basis_open(&basis, file, &e), e);
    over.basis = &basis;
    ck_assert_uint_le(c.batch.n_sequences, BASIS_PARTS);
    for (size_t i = 0; i < c.batch.n_sequences; i++) {
        char name[16];
        exf_span span = {0, c.span[i].n_tokens};
        exf_batch alone = {c.ids + c.span[i].offset, &span, 1, (size_t)span.n_tokens, span.n_tokens};
        snprintf(name, sizeof name, "%d.h5", (int)i);
        snprintf(path[i], sizeof path[i], "%s", exf_scratch(name));
        paths[i] = path[i];
        ck_ok(statistics_run_of(c.model, &alone, o, &over, path[i], &report, &e), e);
    }
    exf_basis_close(&basis);
    ck_ok(exf_merge_statistics(paths, c.batch.n_sequences, exf_scratch("merged.h5"), 1, 0, 0, digest[1], &e), e);
    ck_ok(same_digest(exf_scratch("merged.h5"), digest[1], &e), e);
    ck_assert_str_eq(digest[0], digest[1]);
    golden_close(&c);
}
#endif
