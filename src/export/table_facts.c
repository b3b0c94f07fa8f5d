/* table_facts.c - what every file of tables says beside its numbers: their facts, and whether each layer has evidence; see
 * writer_internal.h. */
#include "export/writer_internal.h"

#include "artifact/provenance.h"
#include "format/json.h"

#include <string.h>

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
