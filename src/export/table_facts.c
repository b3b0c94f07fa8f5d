/* table_facts.c - see table_facts.h. */
#include "export/table_facts.h"

#include "artifact/made_from.h"
#include "format/json.h"

exf_code exf_table_facts(exf_provenance *out, const exf_export *x, exf_err *err)
{
    const exf_tables *t = x->tables;
    exf_code rc;
    exf_text layers = {0};
    for (int i = 0; i < t->n_layers; i++) EXF_TRY(exf_text_addf(&layers, err, "%s%d", i ? ", " : "", (int)t->layer_number[i]));
    EXF_TRY(exf_provenance_copy(out, &t->provenance, err));
    EXF_TRY(exf_provenance_add(out, err, "exfold_format", "tables/1"));
    EXF_TRY(exf_provenance_add(out, err, "layer_numbers", "[%s]", layers.s ? layers.s : ""));
    if (x->digest) EXF_TRY(exf_provenance_add(out, err, EXF_MADE_FROM, "%s", x->digest));
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
        EXF_TRY(exf_text_addf(out, err, i ? ",\n  " : "{\n  "));
        EXF_TRY(exf_json_quote(out, facts.key[i], err));
        EXF_TRY(exf_text_addf(out, err, ": "));
        EXF_TRY(exf_json_quote(out, facts.value[i], err));
    }
    EXF_TRY(exf_text_addf(out, err, "\n}\n"));
out:
    exf_provenance_free(&facts);
    return rc;
}
