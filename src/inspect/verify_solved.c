/* verify_solved.c - tables are solved again from their statistics and compared number by number, so
 * that a changed number is found however well it fits the others; see verify.h. */
#include "artifact/table_list.h"
#include "artifact/tables.h"
#include "base/text.h"
#include "base/version.h"
#include "inspect/verify_internal.h"
#include "solve/solve.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

/* "[3, 5, 2]": where element i stands. */
static exf_code add_place(exf_text *out, const exf_tensor *t, size_t i, exf_err *err)
{
    exf_code rc = EXF_OK;
    size_t below = 1;
    for (int a = 1; a < t->rank; a++) below *= (size_t)t->shape[a];
    for (int a = 0; rc == EXF_OK && a < t->rank; a++) {
        rc = exf_text_addf(out, err, "%s%zu", a ? ", " : "[", i / below % (size_t)t->shape[a]);
        if (a + 1 < t->rank) below /= (size_t)t->shape[a + 1];
    }
    return rc == EXF_OK ? exf_text_addf(out, err, "]") : rc;
}

/* Another program may have solved them in another way; then the message says so. */
static exf_code add_program(exf_text *out, const exf_provenance *p, exf_err *err)
{
    const char *version = exf_provenance_get(p, "solve.version"), *commit = exf_provenance_get(p, "solve.commit");
    if (version && commit && strcmp(version, exf_release()) == 0 && strcmp(commit, exf_commit()) == 0) return EXF_OK;
    return exf_text_addf(out, err, "; they were solved by exfold %s (commit %s), this is %s (commit %s)", version ? version : "?",
                         commit ? commit : "?", exf_release(), exf_commit());
}

static exf_code differs(const exf_verify_file *statistics, const exf_verify_file *tables, const exf_tensor *have,
                        const exf_tensor *want, size_t i, exf_err *err)
{
    char value[2][VALUE];
    exf_text place = {0};
    exf_code rc;
    show_value(value[0], have, i);
    show_value(value[1], want, i);
    EXF_TRY(add_place(&place, have, i, err));
    EXF_TRY(exf_text_addf(&place, err, " is %s, %s solved again with the recorded settings gives %s", value[0], statistics->path,
                          value[1]));
    EXF_TRY(add_program(&place, &tables->inspection.provenance, err));
    rc = exf_fail(err, EXF_FORMAT, "%s: %s%s", tables->path, have->name, place.s);
out:
    exf_text_free(&place);
    return rc;
}

static exf_code compare(const exf_verify_file *statistics, const exf_verify_file *tables, const exf_tensor *have,
                        const exf_tensor *want, exf_err *err)
{
    size_t size = exf_dtype_bits(have->dtype) / 8, n = exf_tensor_bytes(have) / size;
    const char *a = have->data, *b = want->data;
    if (have->dtype != want->dtype || have->rank != want->rank || memcmp(have->shape, want->shape, sizeof have->shape) != 0)
        return exf_fail(err, EXF_FORMAT, "%s: %s has another shape than %s gives when it is solved again", tables->path, have->name,
                        statistics->path);
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + i * size, b + i * size, size) != 0) return differs(statistics, tables, have, want, i, err);
    return EXF_OK;
}

static const exf_tensor *find(const exf_table_list *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->name[i], name) == 0) return &l->tensor[i];
    return NULL;
}

/* Tables of an older version lack arrays that are solved today. */
static exf_code compare_lists(const exf_verify_file *statistics, const exf_verify_file *tables, const exf_table_list *have,
                              const exf_table_list *want, exf_err *err)
{
    int is_old = tables->inspection.version < exf_artifact_tables.version;
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < want->n; i++) {
        const exf_tensor *t = find(have, want->name[i]);
        if (!t && is_old) continue;
        if (!t)
            return exf_fail(err, EXF_FORMAT, "%s: lacks %s, which %s gives when it is solved again", tables->path, want->name[i],
                            statistics->path);
        EXF_TRY(compare(statistics, tables, t, &want->tensor[i], err));
    }
    for (size_t i = 0; i < have->n; i++)
        if (!find(want, have->name[i]))
            return exf_fail(err, EXF_FORMAT, "%s: holds %s, which %s does not give when it is solved again", tables->path,
                            have->name[i], statistics->path);
out:
    return rc;
}

exf_code exf_verify_solved(const exf_verify_file *statistics, const exf_verify_file *tables, exf_err *err)
{
    exf_tables have = {.n_layers = 0}, want = {.n_layers = 0};
    exf_table_list a = {.n = 0}, b = {.n = 0};
    exf_code rc;
    EXF_TRY(exf_tables_read(&have, tables->path, err));
    EXF_TRY(exf_tables_read_vectors(&have, tables->path, err));
    EXF_TRY(exf_solve_again(&have, tables->path, statistics->path, &want, err));
    EXF_TRY(exf_table_list_make(&a, &have, err));
    EXF_TRY(exf_table_list_make(&b, &want, err));
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
