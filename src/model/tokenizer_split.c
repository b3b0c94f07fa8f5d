/* tokenizer_split.c - see tokenizer_split.h. */
#include "model/tokenizer_split.h"

#include "base/mem.h"
#include "base/stop.h"
#include "model/tokenizer_internal.h"
#include "model/tokenizer_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <inttypes.h>
#include <pcre2.h>
#include <string.h>

/* The limits are for patterns that run away: the released ones stay far below.  At each place of a text a
 * pattern may take FREE_STEPS steps, as PCRE2 counts them; what takes more is paid from the text's budget, and no single
 * place may take so many that a stop would wait for it. */
enum { MOST_STEPS = 32, FREE_STEPS = 1024, DEARER = 4, LEAST_BUDGET = 20000000, BUDGET_PER_BYTE = 200, MOST_AT_ONE_PLACE = 1 << 28,
       HEAP_LIMIT_KIB = 1 << 20 };

typedef struct { pcre2_code *code; int only_matches; } split_step;

struct exf_splitter {
    pcre2_compile_context *context;
    split_step step[MOST_STEPS];
    size_t n;
    int byte_level;
};

struct exf_split_work {
    pcre2_match_data *match;
    pcre2_match_context *context;
    uint64_t budget, left; /* steps for the whole text, and those that are not spent */
    size_t bytes;          /* of the text, as far as it was given */
};

static void *get_memory(PCRE2_SIZE size, void *unused)
{
    void *p;
    (void)unused;
    return exf_mem_new(&p, size, 1, "PCRE2", NULL) == EXF_OK ? p : NULL;
}

static void give_memory(void *p, void *unused)
{
    (void)unused;
    exf_mem_free(p);
}

static exf_code no_memory(exf_err *err)
{
    return exf_fail(err, EXF_NOSPACE, "out of memory in PCRE2");
}

/* ---- loading -------------------------------------------------------- */

static exf_code add_step(exf_splitter *s, const char *pattern, size_t len, uint32_t options, int only_matches, const char *where,
                         exf_err *err)
{
    int code;
    PCRE2_SIZE at;
    PCRE2_UCHAR why[200];
    if (s->n == MOST_STEPS) return exf_fail(err, EXF_MODEL, "%s: pre_tokenizer has more than %d steps", where, MOST_STEPS);
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, len, PCRE2_UTF | PCRE2_USE_OFFSET_LIMIT | options, &code, &at, s->context);
    if (!re && code == PCRE2_ERROR_HEAP_FAILED) return no_memory(err);
    if (!re) {
        pcre2_get_error_message(code, why, sizeof why);
        return exf_fail(err, EXF_MODEL, "%s: pattern of pre_tokenizer Split does not compile: %s at byte %zu of \"%s\"", where,
                        (char *)why, (size_t)at, pattern);
    }
    (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE); /* without it the interpreter serves */
    s->step[s->n++] = (split_step){re, only_matches};
    return EXF_OK;
}

static exf_code add_regex(exf_splitter *s, const char *pattern, size_t len, int only_matches, const char *where, exf_err *err)
{
    exf_text translated = {0};
    exf_code rc;
    EXF_TRY(exf_text_add(&translated, "", 0, err));
    EXF_TRY(exf_regex_translate(&translated, pattern, len, where, err));
    EXF_TRY(add_step(s, translated.s, translated.len, PCRE2_UCP | PCRE2_MULTILINE, only_matches, where, err));
out:
    exf_text_free(&translated);
    return rc;
}

static exf_code load_split(exf_splitter *s, const exf_json *part, const char *where, exf_err *err)
{
    const exf_json *pattern = exf_json_get(part, "pattern");
    const char *behavior = exf_json_string(exf_json_get(part, "behavior"), NULL);
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
    if ((regex = exf_json_string(exf_json_get(pattern, "Regex"), &len))) return add_regex(s, regex, len, only_matches, where, err);
    if ((literal = exf_json_string(exf_json_get(pattern, "String"), &len)))
        return add_step(s, literal, len, PCRE2_LITERAL, only_matches, where, err);
    return exf_fail(err, EXF_MODEL, "%s: pre_tokenizer Split: its pattern is neither {\"Regex\": ...} nor {\"String\": ...}",
                    where);
}

/* Rust's is_numeric() is general category N. */
static exf_code load_digits(exf_splitter *s, const exf_json *part, const char *where, exf_err *err)
{
    int each;
    exf_code rc = exf_part_bool(&each, part, "individual_digits", where, "pre_tokenizer", "Digits", err);
    const char *pattern = each ? "\\p{N}" : "\\p{N}+";
    return rc != EXF_OK ? rc : add_step(s, pattern, strlen(pattern), PCRE2_UCP, 0, where, err);
}

static exf_code load_byte_level(exf_splitter *s, const exf_json *part, const char *where, exf_err *err)
{
    static const char *const option[] = {"add_prefix_space", "use_regex"};
    for (size_t i = 0; i < 2; i++) {
        int on;
        exf_code rc = exf_part_bool(&on, part, option[i], where, "pre_tokenizer", "ByteLevel", err);
        if (rc != EXF_OK) return rc;
        if (on)
            return exf_fail(err, EXF_MODEL, "%s: pre_tokenizer ByteLevel with %s true is not supported (supported: false)", where,
                            option[i]);
    }
    s->byte_level = 1;
    return EXF_OK;
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
    /* What follows ByteLevel would see its alphabet instead of the text. */
    if (s->byte_level)
        return exf_fail(err, EXF_MODEL, "%s: pre_tokenizer \"%s\" after ByteLevel is not supported (ByteLevel must be the last)",
                        where, type);
    if (strcmp(type, "Split") == 0) return load_split(s, part, where, err);
    if (strcmp(type, "Digits") == 0) return load_digits(s, part, where, err);
    if (strcmp(type, "ByteLevel") == 0) return load_byte_level(s, part, where, err);
    return exf_fail(err, EXF_MODEL, "%s: pre_tokenizer \"%s\" is not supported (supported: Split, Digits, ByteLevel, Sequence)",
                    where, type);
}

exf_code exf_splitter_load(exf_splitter **out, const exf_json *part, const char *where, exf_err *err)
{
    pcre2_general_context *memory = NULL;
    exf_splitter *s;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_new(&s, 1, sizeof *s, "pre-tokenizer", err));
    *out = s;
    memory = pcre2_general_context_create(get_memory, give_memory, NULL);
    s->context = memory ? pcre2_compile_context_create(memory) : NULL;
    if (!s->context) EXF_TRY(no_memory(err));
    pcre2_set_newline(s->context, PCRE2_NEWLINE_LF);
    EXF_TRY(load_step(s, part, where, err));
    if (!s->byte_level)
        rc = exf_fail(err, EXF_MODEL, "%s: pre_tokenizer \"%s\" without a ByteLevel step is not supported", where,
                      exf_part_type(part));
out:
    pcre2_general_context_free(memory);
    if (rc != EXF_OK) {
        exf_splitter_free(*out);
        *out = NULL;
    }
    return rc;
}

void exf_splitter_free(exf_splitter *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n; i++) pcre2_code_free(s->step[i].code);
    pcre2_compile_context_free(s->context);
    exf_mem_free(s);
}

/* ---- splitting ------------------------------------------------------ */

exf_code exf_split_work_new(exf_split_work **out, exf_err *err)
{
    exf_code rc = exf_mem_new(out, 1, sizeof **out, "pre-tokenizer's work", err);
    if (rc != EXF_OK) return rc;
    exf_split_work *w = *out;
    pcre2_general_context *memory = pcre2_general_context_create(get_memory, give_memory, NULL);
    w->match = memory ? pcre2_match_data_create(1, memory) : NULL;
    w->context = memory ? pcre2_match_context_create(memory) : NULL;
    pcre2_general_context_free(memory);
    if (!w->match || !w->context) {
        exf_split_work_free(w);
        *out = NULL;
        return no_memory(err);
    }
    w->budget = w->left = LEAST_BUDGET;
    pcre2_set_heap_limit(w->context, HEAP_LIMIT_KIB);
    return EXF_OK;
}

void exf_split_work_free(exf_split_work *w)
{
    if (!w) return;
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    exf_mem_free(w);
}

typedef struct {
    const exf_splitter *s;
    exf_split_work *w;
    exf_pretoken_fn *emit;
    void *ctx;
} run;

/* PCRE2's answer for the places from `at` to `last`, with at most so many steps at each.  The text was checked
 * once; checking again in every call would be quadratic. */
static int attempt(const run *r, const pcre2_code *code, const char *text, size_t len, size_t at, size_t last, uint32_t steps)
{
    exf_split_work *w = r->w;
    pcre2_set_match_limit(w->context, steps);
    pcre2_set_offset_limit(w->context, last);
    int n = pcre2_match(code, (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK, w->match, w->context);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter's stack is on the heap */
        n = pcre2_match(code, (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, w->match, w->context);
    return n;
}

static exf_code no_budget(const exf_split_work *w, size_t at, exf_err *err)
{
    return exf_fail(err, EXF_MODEL,
                    "a pattern of the pre_tokenizer takes more than %" PRIu64 " steps on a text of %zu bytes, at byte %zu of a"
                    " piece; split the text into shorter documents or use another tokenizer", w->budget, w->bytes, at);
}

/* The answer for one place, with as many steps as it takes and the budget has; *hard: it took more than the free ones. */
static exf_code attempt_one(const run *r, const pcre2_code *code, const char *text, size_t len, size_t at, int *n, int *hard,
                            exf_err *err)
{
    *n = attempt(r, code, text, len, at, at, FREE_STEPS);
    *hard = *n == PCRE2_ERROR_MATCHLIMIT;
    for (uint32_t steps = FREE_STEPS * DEARER; *n == PCRE2_ERROR_MATCHLIMIT; steps *= DEARER) {
        if (r->w->left < steps || steps > MOST_AT_ONE_PLACE) return no_budget(r->w, at, err);
        r->w->left -= steps;
        *n = attempt(r, code, text, len, at, at, steps);
    }
    return exf_stop_check(err);
}

static size_t next_character(const char *text, size_t len, size_t at)
{
    for (at++; at < len && ((unsigned char)text[at] & 0xc0) == 0x80;) at++;
    return at;
}

/* The answer from `at` on.  Where a place is hard, the places are tried one by one up to behind it. */
static exf_code attempt_all(const run *r, const pcre2_code *code, const char *text, size_t len, size_t at, int *n, exf_err *err)
{
    int hard = 0;
    *n = attempt(r, code, text, len, at, PCRE2_UNSET, FREE_STEPS);
    while (*n == PCRE2_ERROR_MATCHLIMIT) {
        exf_code rc = attempt_one(r, code, text, len, at, n, &hard, err);
        if (rc != EXF_OK || *n != PCRE2_ERROR_NOMATCH || at >= len) return rc;
        at = next_character(text, len, at);
        *n = hard ? attempt(r, code, text, len, at, PCRE2_UNSET, FREE_STEPS) : PCRE2_ERROR_MATCHLIMIT;
    }
    return EXF_OK;
}

/* *found: whether there is a match at or after `at`, and then its bounds. */
static exf_code find(const run *r, const pcre2_code *code, const char *text, size_t len, size_t at, size_t bounds[2], int *found,
                     exf_err *err)
{
    PCRE2_UCHAR why[200];
    int n;
    exf_code rc = attempt_all(r, code, text, len, at, &n, err);
    if (rc != EXF_OK) return rc;
    *found = n >= 0;
    if (n == PCRE2_ERROR_NOMATCH) return EXF_OK;
    if (n == PCRE2_ERROR_NOMEMORY) return no_memory(err);
    if (n < 0) {
        pcre2_get_error_message(n, why, sizeof why);
        return exf_fail(err, EXF_MODEL, "a pattern of the pre_tokenizer fails on a text of %zu bytes: %s", len, (char *)why);
    }
    memcpy(bounds, pcre2_get_ovector_pointer(r->w->match), 2 * sizeof *bounds);
    return EXF_OK;
}

/* One step on one pre-token of the step before; its pre-tokens go to the next step at once,
 * so that nothing is stored.  A pre-token is a string of its own: ^, $ and look-behind
 * do not see beyond it. */
static exf_code split(const run *r, size_t k, const char *text, size_t len, exf_err *err)
{
    if (len == 0) return EXF_OK;
    if (k == r->s->n) return r->emit(r->ctx, text, len, err);
    const split_step *step = &r->s->step[k];
    size_t at = 0, done = 0, last = SIZE_MAX, m[2] = {0, 0};
    int found;
    exf_code rc;
    while (at <= len) {
        EXF_TRY(find(r, step->code, text, len, at, m, &found, err));
        if (!found) break;
        if (m[0] == m[1] && m[0] == last) {
            /* An empty match right behind the last one does not count; try one
             * character on.  Other empty matches cut the text in two. */
            at = next_character(text, len, at);
            continue;
        }
        if (!step->only_matches) EXF_TRY(split(r, k + 1, text + done, m[0] - done, err));
        EXF_TRY(split(r, k + 1, text + m[0], m[1] - m[0], err));
        done = at = last = m[1];
    }
    rc = step->only_matches ? EXF_OK : split(r, k + 1, text + done, len - done, err);
out:
    return rc;
}

exf_code exf_splitter_run(const exf_splitter *s, exf_split_work *w, const char *text, size_t len, exf_pretoken_fn *emit, void *ctx,
                          exf_err *err)
{
    run r = {s, w, emit, ctx};
    uint64_t more = (uint64_t)len * BUDGET_PER_BYTE;
    w->budget += more;
    w->left += more;
    w->bytes += len;
    return split(&r, 0, text, len, err);
}
