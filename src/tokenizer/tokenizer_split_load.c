/* tokenizer_split_load.c - loads a pre-tokenizer: its steps, each a pattern compiled on the alphabet of all patterns; see
 * tokenizer_split.c. */
#include "tokenizer/tokenizer_split_internal.h"

#include "base/err.h"
#include "base/mem.h"

#include <string.h>

/* ---- steps ---------------------------------------------------------- */

static exf_code compile_pattern(pcre2_code **out, const exf_splitter *s, const exf_text *bytes, uint32_t options, uint32_t jit,
                                const exf_regex_source *from, const char *pattern, exf_err *err)
{
    int code;
    PCRE2_SIZE at;
    PCRE2_UCHAR why[200];
    *out = pcre2_compile((PCRE2_SPTR)bytes->s, bytes->len, PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT | options, &code, &at,
                         s->context);
    if (!*out && code == PCRE2_ERROR_HEAP_FAILED) return exf_split_no_memory(err);
    if (!*out) {
        pcre2_get_error_message(code, why, sizeof why);
        return exf_fail(err, EXF_MODEL, "%s: %s does not compile: %s: \"%s\"", from->file, from->what, (char *)why, pattern);
    }
    (void)pcre2_jit_compile(*out, jit); /* without it the interpreter serves */
    return EXF_OK;
}

/* bytes: the pattern on the alphabet's bytes; pattern: as the file has it. */
static exf_code add_step(exf_splitter *s, const exf_text *bytes, int only_matches, const exf_regex_source *from,
                         const char *pattern, exf_err *err)
{
    if (s->n == EXF_SPLIT_MOST_STEPS)
        return exf_fail(err, EXF_MODEL, "%s: pre_tokenizer has more than %d steps", from->file, EXF_SPLIT_MOST_STEPS);
    exf_split_step *step = &s->step[s->n++];
    step->only_matches = only_matches;
    exf_code rc =
        compile_pattern(&step->code, s, bytes, 0, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD, from, pattern, err);
    if (rc != EXF_OK) return rc;
    return compile_pattern(&step->counting, s, bytes, PCRE2_AUTO_CALLOUT, PCRE2_JIT_COMPLETE, from, pattern, err);
}

typedef enum { REGEX, LITERAL } pattern_kind;

/* Tells the alphabet a step's pattern or, once it is closed, adds the step. */
static exf_code add_pattern(exf_splitter *s, pattern_kind kind, const char *pattern, size_t len, int only_matches,
                            const exf_regex_source *from, exf_err *err)
{
    exf_text bytes = {0}, *out = s->closed ? &bytes : NULL;
    exf_code rc;
    if (out) exf_text_append(out, "", 0);
    if (kind == REGEX) EXF_TRY(exf_regex_translate(out, s->alphabet, pattern, len, from, err));
    else EXF_TRY(exf_regex_literal(out, s->alphabet, pattern, len, err));
    if (out) EXF_TRY(add_step(s, out, only_matches, from, pattern, err));
out:
    exf_text_free(&bytes);
    return rc;
}

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
        return add_pattern(s, REGEX, regex, len, only_matches, &from, err);
    if ((literal = exf_json_string(exf_json_get(pattern, "String"), &len)))
        return add_pattern(s, LITERAL, literal, len, only_matches, &from, err);
    return exf_fail(err, EXF_MODEL, "%s: pre_tokenizer Split: its pattern is neither {\"Regex\": ...} nor {\"String\": ...}",
                    where);
}

/* Rust's is_numeric() is general category N of a younger Unicode than the patterns'. */
static exf_code load_digits(exf_splitter *s, const exf_json *part, const char *where, exf_err *err)
{
    exf_text bytes = {0};
    exf_chars digits = {0};
    int each;
    exf_code rc;
    EXF_TRY(exf_part_bool(&each, part, "individual_digits", where, "pre_tokenizer", "Digits", err));
    EXF_TRY(exf_chars_add_digits(&digits, err));
    exf_chars_sort(&digits);
    if (!s->closed) {
        rc = exf_alphabet_tell(s->alphabet, &digits, err);
        goto out;
    }
    exf_alphabet_write(s->alphabet, &digits, &bytes);
    if (!each) exf_text_append(&bytes, "+", 1);
    EXF_TRY(exf_text_end(&bytes, err));
    rc = add_step(s, &bytes, 0, &(exf_regex_source){where, "pre_tokenizer Digits", 0}, "Digits", err);
out:
    exf_chars_free(&digits);
    exf_text_free(&bytes);
    return rc;
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
    s->byte_level = 1;
    const exf_regex_source from = {where, "pattern of pre_tokenizer ByteLevel", 0};
    return splits ? add_pattern(s, REGEX, byte_level_pattern, sizeof byte_level_pattern - 1, 0, &from, err) : EXF_OK;
}

static exf_code load_step(exf_splitter *s, const exf_json *part, const char *where, exf_err *err)
{
    const char *type = exf_part_type(part);
    if (strcmp(type, "Sequence") == 0) {
        const exf_json *list = exf_json_get(part, "pretokenizers");
        if (exf_json_type(list) != EXF_JSON_ARRAY)
            return exf_fail(err, EXF_MODEL, "%s: pre_tokenizer Sequence: pretokenizers is %s, not an array", where,
                            exf_json_type_name(list));
        for (size_t i = 0; i < exf_json_size(list); i++) {
            exf_code rc = load_step(s, exf_json_at(list, i), where, err);
            if (rc != EXF_OK) return rc;
        }
        return EXF_OK;
    }
    /* A step after ByteLevel would see ByteLevel's alphabet instead of the text. */
    if (s->byte_level)
        return exf_fail(err, EXF_MODEL, "%s: pre_tokenizer \"%s\" after ByteLevel is not supported (ByteLevel must be the last)",
                        where, type);
    if (strcmp(type, "Split") == 0) return load_split(s, part, where, err);
    if (strcmp(type, "Digits") == 0) return load_digits(s, part, where, err);
    if (strcmp(type, "ByteLevel") == 0) return load_byte_level(s, part, where, err);
    return exf_fail(err, EXF_MODEL,
                    "%s: pre_tokenizer \"%s\" is not supported (supported: Split, Digits, ByteLevel, Sequence; with byte_fallback "
                    "null, Metaspace)",
                    where, type);
}

/* A splitter without steps. */
static exf_code new_splitter(exf_splitter **out, const char *where, exf_err *err)
{
    pcre2_general_context *memory = NULL;
    exf_code rc = exf_mem_new(out, 1, sizeof **out, "pre-tokenizer", err);
    if (rc != EXF_OK) {
        *out = NULL;
        return rc;
    }
    memory = exf_split_memory();
    (*out)->context = memory ? pcre2_compile_context_create(memory) : NULL;
    pcre2_general_context_free(memory);
    if (!(*out)->context) return exf_split_no_memory(err);
    pcre2_set_newline((*out)->context, PCRE2_NEWLINE_LF);
    return exf_alphabet_new(&(*out)->alphabet, where, err);
}

static void close_alphabet(exf_splitter *s)
{
    exf_alphabet_close(s->alphabet);
    s->closed = 1;
}

exf_code exf_splitter_load(exf_splitter **out, const exf_json *part, const char *where, exf_err *err)
{
    exf_code rc;
    EXF_TRY(new_splitter(out, where, err));
    EXF_TRY(load_step(*out, part, where, err));
    close_alphabet(*out);
    (*out)->byte_level = 0;
    EXF_TRY(load_step(*out, part, where, err));
    if (!(*out)->byte_level)
        rc = exf_fail(err, EXF_MODEL, "%s: pre_tokenizer \"%s\" without a ByteLevel step is not supported", where,
                      exf_part_type(part));
out:
    if (rc != EXF_OK) {
        exf_splitter_free(*out);
        *out = NULL;
    }
    return rc;
}

exf_code exf_splitter_of_pattern(exf_splitter **out, const char *pattern, size_t len, const char *file, const char *what,
                                 exf_err *err)
{
    const exf_regex_source from = {file, what, 1};
    exf_code rc;
    EXF_TRY(new_splitter(out, file, err));
    EXF_TRY(add_pattern(*out, REGEX, pattern, len, 1, &from, err));
    close_alphabet(*out);
    rc = add_pattern(*out, REGEX, pattern, len, 1, &from, err);
out:
    if (rc != EXF_OK) {
        exf_splitter_free(*out);
        *out = NULL;
    }
    return rc;
}

void exf_splitter_free(exf_splitter *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n; i++) {
        pcre2_code_free(s->step[i].code);
        pcre2_code_free(s->step[i].counting);
    }
    pcre2_compile_context_free(s->context);
    exf_alphabet_free(s->alphabet);
    exf_mem_free(s);
}
