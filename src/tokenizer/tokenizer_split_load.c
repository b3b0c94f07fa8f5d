/* tokenizer_split_load.c - reads the steps of the pre-tokenizer, as "pre_tokenizer" of tokenizer.json has them; tokenizer_split.c
 * compiles and runs them. */
#include "tokenizer/tokenizer_internal.h"

#include <string.h>

static exf_code load_split(exf_splitter *s, const exf_json *part, const char *where, exf_err *err)
{
    const exf_json *pattern = exf_json_get(part, "pattern");
    const char *behavior = exf_json_string(exf_json_get(part, "behavior"), NULL);
    const exf_regex_source from = {where, "pattern of pre_tokenizer Split", 0};
    size_t len;
    const char *regex, *literal;
    int invert;
    exf_code rc = exf_part_bool(&invert, part, "invert", where, "pre_tokenizer", "Split", err);
    if (rc != EXF_OK) return rc;
    if (!behavior) behavior = exf_json_type_name(exf_json_get(part, "behavior"));
    int only_matches = strcmp(behavior, "Removed") == 0 && invert;
    if (!only_matches && strcmp(behavior, "Isolated") != 0)
        return exf_fail(err, EXF_MODEL,
                        "%s: pre_tokenizer Split with behavior \"%s\" and invert %s is not supported (supported: Isolated; Removed "
                        "with invert true)",
                        where, behavior, invert ? "true" : "false");
    if (exf_json_type(pattern) != EXF_JSON_OBJECT) pattern = NULL;
    if ((regex = exf_json_string(exf_json_get(pattern, "Regex"), &len)))
        return exf_splitter_add(s, EXF_PATTERN_REGEX, regex, len, only_matches, &from, err);
    if ((literal = exf_json_string(exf_json_get(pattern, "String"), &len)))
        return exf_splitter_add(s, EXF_PATTERN_LITERAL, literal, len, only_matches, &from, err);
    return exf_fail(err, EXF_MODEL, "%s: pre_tokenizer Split: its pattern is neither {\"Regex\": ...} nor {\"String\": ...}",
                    where);
}

/* GPT-2's pattern, by which ByteLevel itself splits unless use_regex says no. */
static const char byte_level_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static exf_code load_byte_level(exf_splitter *s, const exf_json *part, const char *where, exf_err *err)
{
    int prefix, splits = 1;
    exf_code rc = exf_part_bool(&prefix, part, "add_prefix_space", where, "pre_tokenizer", "ByteLevel", err);
    if (rc == EXF_OK && exf_json_get(part, "use_regex")) /* true where it is missing */
        rc = exf_part_bool(&splits, part, "use_regex", where, "pre_tokenizer", "ByteLevel", err);
    if (rc != EXF_OK) return rc;
    if (prefix)
        return exf_fail(err, EXF_MODEL,
                        "%s: pre_tokenizer ByteLevel with add_prefix_space true is not supported (supported: false)", where);
    const exf_regex_source from = {where, "pattern of pre_tokenizer ByteLevel", 0};
    if (!splits) return EXF_OK;
    return exf_splitter_add(s, EXF_PATTERN_REGEX, byte_level_pattern, sizeof byte_level_pattern - 1, 0, &from, err);
}

/* *byte_level: whether the last step was ByteLevel. */
static exf_code load_step(exf_splitter *s, int *byte_level, const exf_json *part, const char *where, exf_err *err)
{
    const char *type = exf_part_type(part);
    if (strcmp(type, "Sequence") == 0) {
        const exf_json *list = exf_json_get(part, "pretokenizers");
        if (exf_json_type(list) != EXF_JSON_ARRAY)
            return exf_fail(err, EXF_MODEL, "%s: pre_tokenizer Sequence: pretokenizers is %s, not an array", where,
                            exf_json_type_name(list));
        for (size_t i = 0; i < exf_json_size(list); i++) {
            exf_code rc = load_step(s, byte_level, exf_json_at(list, i), where, err);
            if (rc != EXF_OK) return rc;
        }
        return EXF_OK;
    }
    /* A step after ByteLevel would see ByteLevel's alphabet instead of the text. */
    if (*byte_level)
        return exf_fail(err, EXF_MODEL, "%s: pre_tokenizer \"%s\" after ByteLevel is not supported (ByteLevel must be the last)",
                        where, type);
    if (strcmp(type, "Split") == 0) return load_split(s, part, where, err);
    if (strcmp(type, "Digits") == 0) {
        const exf_regex_source from = {where, "pre_tokenizer Digits", 0};
        int each;
        exf_code rc = exf_part_bool(&each, part, "individual_digits", where, "pre_tokenizer", "Digits", err);
        if (rc != EXF_OK) return rc;
        return exf_splitter_add(s, each ? EXF_PATTERN_DIGIT : EXF_PATTERN_DIGITS, "Digits", 6, 0, &from, err);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        *byte_level = 1;
        return load_byte_level(s, part, where, err);
    }
    return exf_fail(err, EXF_MODEL,
                    "%s: pre_tokenizer \"%s\" is not supported (supported: Split, Digits, ByteLevel, Sequence; with byte_fallback "
                    "null, Metaspace)",
                    where, type);
}

exf_code exf_splitter_load(exf_splitter **out, const exf_json *part, const char *where, exf_err *err)
{
    exf_code rc;
    int byte_level = 0;
    EXF_TRY(exf_splitter_new(out, where, err));
    EXF_TRY(load_step(*out, &byte_level, part, where, err));
    exf_splitter_close(*out);
    byte_level = 0;
    EXF_TRY(load_step(*out, &byte_level, part, where, err));
    if (!byte_level)
        rc = exf_fail(err, EXF_MODEL, "%s: pre_tokenizer \"%s\" without a ByteLevel step is not supported", where,
                      exf_part_type(part));
out:
    return rc;
}
