/* stage_validate_internal.h - a validation from its recipe to its files; shared by stage_validate.c, which tells its steps,
 * stage_validate_request.c and stage_validate_results.c. */
#ifndef EXF_RUN_STAGE_VALIDATE_INTERNAL_H
#define EXF_RUN_STAGE_VALIDATE_INTERNAL_H
#include "artifact/provenance.h"
#include "artifact/tables.h"
#include "recipe/recipe.h"
#include "run/session.h"
#include "validate/frontier.h"
#include "validate/gates.h"
#include "validate/validation.h"

/* What a validation is asked to decide. */
typedef struct {
    int has_limit;
    exf_limit limit;
    double bandwidth; /* bytes per second of the memory that will serve; 0: not given */
} exf_validate_decision;

/* Everything that a validation has, opened in this order. */
typedef struct {
    exf_recipe recipe; /* as the session reads it */
    exf_session session;
    exf_run_directory dir, of_json, of_picture;
    char *tables_path, *json, *markdown, *picture, *manifest, **names;
    exf_text_inputs text; /* of --text; its manifest is one of the outputs */
    exf_tables tables;
    char digest[EXF_SHA256_HEX]; /* of the tables */
    exf_variant *variants;
    const exf_runtime *runtime; /* NULL: none */
    size_t n_variants; /* as the recipe, or the sweep, has them */
    exf_lane_list lanes;
    exf_quality_gate *gates;
    size_t n_gates;
    exf_validate_decision decision;
    int pilots; /* 1: the sweep was asked for by the limit alone */
    size_t *group_of; /* [sequences] its decode batch: a rank takes whole ones */
    int32_t *domain_of;
    int64_t *document_of;
    exf_decode_schedule *schedule; /* of each size of decode batches */
    exf_provenance facts;
    exf_resume *resume;
} exf_validate_stage;

/* ---- what was asked for (stage_validate_request.c) --------------------------------------------------- */

/* Reads what the recipe asks for before any file is open: texts and their corpus, what is to be decided, the names of tables and
 * outputs. */
exf_code exf_validate_read_request(exf_validate_stage *s, exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Parses variants and gates for the session's model, and lists the lanes. */
exf_code exf_validate_read_variants(exf_validate_stage *s, const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Lists the lanes of the pass: the variants by the sizes of their batches, their baselines, and two by halves. */
exf_code exf_validate_list_lanes(exf_validate_stage *s, const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Refuses, before the pass, outputs that exist, have one name or lie in no directory. */
exf_code exf_validate_check_files(const exf_validate_stage *s, const exf_recipe *r, exf_err *err) EXF_CHECKED;

/* ---- what is written (stage_validate_results.c) ------------------------------------------------------- */

/* Adds the facts of the results that are known before the pass. */
exf_code exf_validate_add_facts(exf_validate_stage *s, const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Adds those that the pass found, and writes the results: what the rows cost, what they gain, and what is recommended. */
exf_code exf_validate_write_results(exf_validate_stage *s, const exf_recipe *r, const exf_validation *v, exf_err *err) EXF_CHECKED;
#endif
