/* writer.c - the table of export targets, made from the files in this directory; what is checked before any of them writes; and
 * what they share: the facts that go with tables, layers without evidence, the lines of Python that load a file. */
#include "export/writer_internal.h"

#include "artifact/provenance.h"
#include "base/file.h"
#include "base/registry.h"
#include "format/json.h"

#include <string.h>

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

exf_code exf_writer_check_path(const exf_writer *w, const char *path, int force, exf_err *err)
{
    return w->is_directory ? exf_output_directory_check(path, force, err) : exf_output_check(path, force, err);
}

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
    const exf_export_settings settings = {shape->n_experts, shape->top_k, x->keep, x->ranks, x->model ? &x->model->arch : NULL,
                                          !exf_tables_of_common_input(x->tables)};
    exf_code rc = exf_writer_check_tables(w, x->tables, path, err);
    if (rc == EXF_OK) rc = exf_writer_check_settings(w, &settings, err);
    if (rc != EXF_OK || !w->allows) return rc;
    rc = w->allows(x, err);
    if (rc != EXF_OK) exf_err_prefix(err, "target %s: ", w->name);
    return rc;
}

/* ---- layers without evidence ------------------------------------------------------------------ */

/* Returns 1 if the tables have layer `index`, and a pair with evidence in it. */
static int has_pairs(const exf_tables *t, int index)
{
    size_t cells = (size_t)t->shape.n_experts * (size_t)t->shape.n_experts;
    for (size_t i = 0; index >= 0 && i < cells; i++)
        if (t->loss[(size_t)index * cells + i] < EXF_NO_PAIR) return 1;
    return 0;
}

exf_code exf_writer_refuse_unobserved(const exf_tables *t, int first, int n, exf_err *err)
{
    for (int l = first; l < n; l++)
        if (!has_pairs(t, exf_tables_index(t, l)))
            return exf_fail(err, EXF_THRESHOLD,
                            "layer %d has no pair of experts with evidence, and the runtime folds it all the same: what it leaves "
                            "out there is lost; calibrate the layer too (calibrate.pairs: common_input observes every one), or "
                            "accept the loss with serve.unobserved_layers=accept",
                            l);
    return EXF_OK;
}

exf_code exf_writer_covers_own(const exf_tables *t, int by_token, exf_err *err)
{
    exf_code rc = EXF_OK;
    (void)by_token;
    for (int i = 0; i < t->n_layers && rc == EXF_OK; i++)
        rc = exf_writer_refuse_unobserved(t, t->layer_number[i], t->layer_number[i] + 1, err);
    return rc;
}

/* ---- facts ------------------------------------------------------------------------------------ */

exf_code exf_table_facts(exf_provenance *out, const exf_export *x, exf_err *err)
{
    const exf_tables *t = x->tables;
    exf_code rc;
    exf_text layers = {0};
    for (int i = 0; i < t->n_layers; i++) exf_text_appendf(&layers, "%s%d", i ? ", " : "", (int)t->layer_number[i]);
    EXF_TRY(exf_text_end(&layers, err));
    EXF_TRY(exf_provenance_copy(out, &t->provenance, err));
    EXF_TRY(exf_provenance_add(out, err, "exfold_format", "tables/1"));
    EXF_TRY(exf_provenance_add(out, err, "layer_numbers", "[%s]", layers.s ? layers.s : ""));
    if (x->digest) EXF_TRY(exf_provenance_add(out, err, EXF_MADE_FROM, "%s", x->digest));
    if (x->other_weights) EXF_TRY(exf_provenance_add(out, err, "export.other_weights", "%s", x->other_weights));
    EXF_TRY(exf_provenance_add(out, err, "loss_kind", "relative_scalar_reconstruction_error"));
out:
    exf_text_free(&layers);
    if (rc != EXF_OK) exf_provenance_free(out);
    return rc;
}

exf_code exf_table_facts_json(exf_text *out, const exf_export *x, exf_err *err)
{
    exf_provenance facts = {0};
    exf_code rc;
    EXF_TRY(exf_table_facts(&facts, x, err));
    for (size_t i = 0; i < facts.n; i++) {
        exf_text_appendf(out, i ? ",\n  " : "{\n  ");
        EXF_TRY(exf_json_quote(out, facts.key[i], err));
        exf_text_appendf(out, ": ");
        EXF_TRY(exf_json_quote(out, facts.value[i], err));
    }
    exf_text_appendf(out, "\n}\n");
    rc = exf_text_end(out, err);
out:
    exf_provenance_free(&facts);
    return rc;
}

exf_code exf_table_facts_file(exf_output_directory *f, const exf_export *x, exf_err *err)
{
    exf_text facts = {0};
    exf_code rc;
    EXF_TRY(exf_table_facts_json(&facts, x, err));
    EXF_TRY(exf_output_directory_file(f, EXF_FACTS_FILE, err));
    EXF_TRY(exf_output_directory_write(f, facts.s, facts.len, err));
out:
    exf_text_free(&facts);
    return rc;
}

/* ---- snippets ---------------------------------------------------------------------------------- */

/* Of tables.h5, which is no export. */
static const exf_snippet hdf5 = {
    "hdf5", "HDF5, with h5py",
    "import h5py\n"
    "\n"
    "with h5py.File(\"tables.h5\") as f:\n"
    "    family = f[\"provenance\"].attrs[\"model.family\"].decode()  # text attributes are bytes\n"
    "    coeff, loss = f[\"coeff\"][:], f[\"loss\"][:]\n"
    "target = loss[0, 3].argmin()\n"
    "print(f\"first layer: expert 3 is about {coeff[0, 3, target]:.4f} times expert {target}\")\n"};

const exf_snippet *exf_snippet_find(const char *target)
{
    const exf_writer *w = exf_writer_find(target);
    if (w) return w->load.code ? &w->load : NULL;
    return strcmp(target, "hdf5") == 0 ? &hdf5 : NULL;
}
