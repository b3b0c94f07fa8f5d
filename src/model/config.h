/* config.h - functions that read typed fields of a checkpoint's config.json, strictly.
 *
 * A field can have several spellings ("num_experts|num_local_experts"); the
 * ones present must agree (EXF_MODEL names two that do not, with their values).  A dotted step goes into an object
 * ("rope_parameters.rope_theta").  null counts as absent.  Messages name the
 * file, the field and what was found. */
#ifndef EXF_MODEL_CONFIG_H
#define EXF_MODEL_CONFIG_H
#include "base/hash.h"
#include "format/json.h"

typedef struct {
    const exf_json *object; /* the object that fields are looked up in */
    const char *path;       /* of config.json, for messages */
} exf_config;

/* The single value at `fields`, NULL if absent under every spelling. */
exf_code exf_config_find(const exf_config *c, const char *fields, const exf_json **out, exf_err *err) EXF_CHECKED;

/* Required integer in [min, max]. */
exf_code exf_config_int(const exf_config *c, const char *fields, int64_t min, int64_t max, int *out, exf_err *err) EXF_CHECKED;
/* The same, *out = fallback when absent. */
exf_code exf_config_int_or(const exf_config *c, const char *fields, int64_t min, int64_t max, int fallback, int *out,
                           exf_err *err) EXF_CHECKED;
/* Required real > 0. */
exf_code exf_config_real(const exf_config *c, const char *fields, double *out, exf_err *err) EXF_CHECKED;
exf_code exf_config_real_or(const exf_config *c, const char *fields, double fallback, double *out, exf_err *err) EXF_CHECKED;
exf_code exf_config_bool_or(const exf_config *c, const char *fields, int fallback, int *out, exf_err *err) EXF_CHECKED;
/* Text, NULL when absent; borrowed from the document. */
exf_code exf_config_text_or(const exf_config *c, const char *fields, const char *fallback, const char **out,
                            exf_err *err) EXF_CHECKED;
/* Checks a field of which only one value is supported: it must be absent, null, or have
 * exactly this text form ("false", "null", "silu", "1"); EXF_MODEL otherwise. */
exf_code exf_config_must_be(const exf_config *c, const char *fields, const char *only, exf_err *err) EXF_CHECKED;
#endif
