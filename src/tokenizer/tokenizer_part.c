/* tokenizer_part.c - what every part of a tokenizer is read with: values of tokenizer.json, with messages that name the part, and
 * lists of token ids; see tokenizer_internal.h. */
#include "tokenizer/tokenizer_internal.h"

#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- values of tokenizer.json ------------------------------------------- */

const char *exf_part_type(const exf_json *part)
{
    if (exf_json_type(part) != EXF_JSON_OBJECT) return exf_json_type_name(part);
    const exf_json *type = exf_json_get(part, "type");
    const char *s = exf_json_string(type, NULL);
    return s ? s : exf_json_type_name(type);
}

exf_code exf_part_bool(int *out, const exf_json *part, const char *key, const char *where, const char *what, const char *name,
                       exf_err *err)
{
    const exf_json *j = exf_json_get(part, key);
    if (exf_json_type(j) != EXF_JSON_BOOL)
        return exf_fail(err, EXF_MODEL, "%s: %s \"%s\": %s is %s, not true or false", where, what, name, key,
                        exf_json_type_name(j));
    *out = exf_json_true(j);
    return EXF_OK;
}

exf_code exf_part_off(const exf_json *part, const char *key, const char *where, const char *what, exf_err *err)
{
    const exf_json *j = exf_json_get(part, key);
    exf_json_kind kind = exf_json_type(j);
    if (kind == EXF_JSON_NULL || (kind == EXF_JSON_BOOL && !exf_json_true(j))) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "%s: %s with %s is not supported (it must be null or false, it is %s)", where, what, key,
                    exf_json_true(j) ? "true" : exf_json_type_name(j));
}

exf_code exf_part_id(int32_t *out, const exf_json *j, const char *where, const char *what, const char *name, exf_err *err)
{
    int64_t id = exf_json_int(j);
    char is[32];
    if (exf_json_type(j) == EXF_JSON_INT && id >= 0 && id < EXF_TOKEN_ID_LIMIT) {
        *out = (int32_t)id;
        return EXF_OK;
    }
    snprintf(is, sizeof is, "%" PRId64, id);
    return exf_fail(err, EXF_MODEL, "%s: %s \"%s\": its id is %s, not an integer from 0 to %d", where, what, name,
                    exf_json_type(j) == EXF_JSON_INT ? is : exf_json_type_name(j), EXF_TOKEN_ID_LIMIT - 1);
}

/* ---- lists of ids --------------------------------------------------------- */

exf_code exf_ids_add(exf_ids *ids, const int32_t *id, size_t n, exf_err *err)
{
    exf_code rc = exf_mem_grow(&ids->id, &ids->cap, ids->n + n, sizeof *id, "token ids", err);
    if (rc != EXF_OK) return rc;
    if (n) memcpy(ids->id + ids->n, id, n * sizeof *id);
    ids->n += n;
    return EXF_OK;
}

void exf_ids_free(exf_ids *ids)
{
    exf_mem_free(ids->id);
    *ids = (exf_ids){0};
}
