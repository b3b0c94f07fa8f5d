/* table_facts.h - the facts that go with exported tables: their provenance and what a reader
 * of the arrays must know. */
#ifndef EXF_EXPORT_TABLE_FACTS_H
#define EXF_EXPORT_TABLE_FACTS_H
#include "export/writer.h"

/* Collects facts about the tables as key = text, in order of key: exfold_format "tables/1",
 * layer_numbers "[3, 4]", loss_kind, tables_digest where it is known, and the tables' provenance.  Release with
 * exf_provenance_free(). */
exf_code exf_table_facts(exf_provenance *out, const exf_export *x, exf_err *err) EXF_CHECKED;
/* The same as a JSON object of strings, a line each. */
exf_code exf_table_facts_json(exf_text *out, const exf_export *x, exf_err *err) EXF_CHECKED;
#endif
