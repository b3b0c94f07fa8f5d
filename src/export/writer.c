/* writer.c - the table of export targets, made from the files in this directory, and what is checked before any of them writes; see
 * writer.h. */
#include "export/writer_internal.h"

#include "artifact/provenance.h"
#include "base/file.h"
#include "base/registry.h"

#define X(name) extern const exf_writer exf_writer_##name;
#include "gen/writer.inc"
#undef X

EXF_REGISTRY_BEGIN
#define X(name) &exf_writer_##name,
#include "gen/writer.inc"
#undef X
EXF_REGISTRY_END(writer)
EXF_REGISTRY_FIND(writer)
EXF_REGISTRY_REQUIRE(writer, "output.targets")

exf_code exf_writer_check_model(const exf_writer *w, const exf_export_model *m, exf_err *err)
{
    exf_code rc = w->serves ? w->serves(m, err) : EXF_OK;
    if (rc != EXF_OK) exf_err_prefix(err, "target %s: ", w->name);
    return rc;
}

/* Checks that the target serves the model that the tables' provenance names. */
static exf_code check_origin(const exf_writer *w, const exf_tables *t, exf_err *err)
{
    const char *family = exf_provenance_get(&t->provenance, "model.family"),
               *layers = exf_provenance_get(&t->provenance, "model.layers");
    exf_export_model m = {.family = family, .n_experts = t->shape.n_experts, .top_k = t->shape.top_k};
    int last = t->n_layers ? (int)t->layer_number[t->n_layers - 1] : 0;
    if (!w->serves) return EXF_OK;
    if (!family || !layers || !exf_parse_i64(layers, &m.n_layers))
        return exf_fail(err, EXF_MODEL,
                        "target %s: the tables do not say of which model they are (model.family is %s, model.layers %s)", w->name,
                        family ? family : "missing", layers ? layers : "missing");
    if (m.n_layers <= last)
        return exf_fail(err, EXF_MODEL, "target %s: the model has %s layers, the tables hold its layer %d", w->name, layers, last);
    return exf_writer_check_model(w, &m, err);
}

exf_code exf_writer_check_tables(const exf_writer *w, const exf_tables *t, const char *path, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (w->wants_vectors && t->vectors.n_pairs) EXF_TRY(exf_vectors_check(t, path, err));
    rc = check_origin(w, t, err);
    if (rc == EXF_OK && w->accepts) rc = w->accepts(t, err);
    if (rc != EXF_OK) exf_err_prefix(err, "%s: ", path);
out:
    return rc;
}

exf_code exf_writer_check_settings(const exf_writer *w, const exf_export_settings *s, exf_err *err)
{
    exf_code rc = w->asks ? w->asks(s, err) : EXF_OK;
    if (rc != EXF_OK) exf_err_prefix(err, "target %s: ", w->name);
    return rc;
}

exf_code exf_writer_check_export(const exf_writer *w, const exf_export *x, const char *path, exf_err *err)
{
    const exf_run_shape *shape = &x->tables->shape;
    const exf_export_settings settings = {shape->n_experts, shape->top_k, x->keep, x->ranks, x->model ? &x->model->arch : NULL};
    exf_code rc = exf_writer_check_tables(w, x->tables, path, err);
    if (rc == EXF_OK) rc = exf_writer_check_settings(w, &settings, err);
    if (rc != EXF_OK || !w->allows) return rc;
    rc = w->allows(x, err);
    if (rc != EXF_OK) exf_err_prefix(err, "target %s: ", w->name);
    return rc;
}
