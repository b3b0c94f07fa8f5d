/* tokenizer_template.c - see tokenizer_template.h. */
#include "tokenizer/tokenizer_template.h"

#include "tokenizer/tokenizer_internal.h"

#include <string.h>

static exf_code add_special(exf_ids *ids, const exf_json *template, const exf_json *item, const char *where, exf_err *err)
{
    const char *name = exf_json_string(exf_json_get(item, "id"), NULL);
    const exf_json *specials = exf_json_get(template, "special_tokens");
    const exf_json *list = name ? exf_json_get(exf_json_get(specials, name), "ids") : NULL;
    if (exf_json_type(list) != EXF_JSON_ARRAY)
        return exf_fail(err, EXF_MODEL, "%s: post_processor TemplateProcessing: special token \"%s\" has no ids in special_tokens",
                        where, name ? name : "?");
    for (size_t i = 0; i < exf_json_size(list); i++) {
        int32_t id;
        exf_code rc = exf_part_id(&id, exf_json_at(list, i), where, "special token of post_processor", name, err);
        if (rc == EXF_OK) rc = exf_ids_add(ids, &id, 1, err);
        if (rc != EXF_OK) return rc;
    }
    return EXF_OK;
}

/* "single": special tokens, and the sequence "A" exactly once. */
static exf_code load_single(exf_template *t, const exf_json *part, const char *where, exf_err *err)
{
    const exf_json *single = exf_json_get(part, "single");
    int sequences = 0;
    if (t->seen++) return exf_fail(err, EXF_MODEL, "%s: more than one post_processor TemplateProcessing is not supported", where);
    for (size_t i = 0; i < exf_json_size(single); i++) {
        const exf_json *item = exf_json_at(single, i);
        const exf_json *special = exf_json_get(item, "SpecialToken"), *sequence = exf_json_get(item, "Sequence");
        const char *id = exf_json_string(exf_json_get(sequence, "id"), NULL);
        exf_code rc = EXF_OK;
        if (special) rc = add_special(sequences ? &t->after : &t->before, part, special, where, err);
        else if (id && strcmp(id, "A") == 0) sequences++;
        else rc = exf_fail(err, EXF_MODEL,
                           "%s: post_processor TemplateProcessing: single[%zu] is neither a SpecialToken nor Sequence \"A\"", where,
                           i);
        if (rc != EXF_OK) return rc;
    }
    if (sequences != 1)
        return exf_fail(err, EXF_MODEL, "%s: post_processor TemplateProcessing: single has Sequence \"A\" %d times, not once",
                        where, sequences);
    return EXF_OK;
}

exf_code exf_template_load(exf_template *t, const exf_json *part, const char *where, exf_err *err)
{
    const char *type = exf_part_type(part);
    if (exf_json_type(part) == EXF_JSON_NULL || strcmp(type, "ByteLevel") == 0) return EXF_OK; /* ByteLevel only moves offsets */
    if (strcmp(type, "TemplateProcessing") == 0) return load_single(t, part, where, err);
    if (strcmp(type, "Sequence") != 0)
        return exf_fail(err, EXF_MODEL,
                        "%s: post_processor \"%s\" is not supported (supported: null, ByteLevel, TemplateProcessing, Sequence)",
                        where, type);
    const exf_json *list = exf_json_get(part, "processors");
    if (exf_json_type(list) != EXF_JSON_ARRAY)
        return exf_fail(err, EXF_MODEL, "%s: post_processor Sequence: processors is %s, not an array", where,
                        exf_json_type_name(list));
    for (size_t i = 0; i < exf_json_size(list); i++) {
        exf_code rc = exf_template_load(t, exf_json_at(list, i), where, err);
        if (rc != EXF_OK) return rc;
    }
    return EXF_OK;
}

void exf_template_free(exf_template *t)
{
    exf_ids_free(&t->before);
    exf_ids_free(&t->after);
}
