/* tokenizer_split.c - the pre-tokenizer loads its steps, each a pattern compiled on the alphabet of all
 * patterns, and cuts text into pre-tokens by them, within a budget.
 *
 * PCRE2 sees a text as a string of bytes, one for each character: its class in the alphabet of all patterns
 * (tokenizer_alphabet.c).  Lengths and places below are of that string; only what is emitted is text again. */
#include "tokenizer/tokenizer_internal.h"

#include "base/err.h"
#include "base/mem.h"

#include <inttypes.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { MOST_STEPS = 32 };

typedef struct {
    pcre2_code *code, *counting; /* the same pattern, without and with a callout in front of every item */
    int only_matches;
} split_step;

struct exf_splitter {
    pcre2_compile_context *context;
    exf_alphabet *alphabet;
    int closed; /* the alphabet knows all patterns; before, the steps are only read */
    split_step step[MOST_STEPS];
    size_t n;
    int byte_level;
};

/* ---- memory ------------------------------------------------------------ */

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

/* Returns a context whose memory is that of base/mem.h; NULL: there is none. */
static pcre2_general_context *new_memory(void)
{
    return pcre2_general_context_create(get_memory, give_memory, NULL);
}

static exf_code no_memory(exf_err *err)
{
    return exf_fail(err, EXF_NOSPACE, "out of memory in PCRE2");
}

/* ---- one text's budget ------------------------------------------------- */

/* A place of a text is first tried with FREE_STEPS steps, as PCRE2 counts them, on a window that reaches WINDOW characters
 * ahead.  A place for which this does not do is hard: it is tried again by code that reports every item of the pattern, and
 * what that does is paid from the text's budget, a step for an item and one for every SCANNED characters that an item has read. */
enum { FREE_STEPS = 128, WINDOW = 128, SCANNED = 8, LEAST_BUDGET = 100000000, BUDGET_PER_BYTE = 200,
       MOST_BUDGET = 2000000000, HEAP_LIMIT_KIB = 1 << 20, STOP_CHECK = 1 << 20 };

struct exf_split_work {
    pcre2_match_data *match;
    pcre2_match_context *context;
    uint64_t budget, left; /* steps for the whole text, and those that are not spent */
    size_t bytes;          /* of the text, as far as it was given */
    unsigned char *class;  /* of each character of the stretch that is cut */
    size_t cap;
    size_t read;           /* where the last item that was counted began */
    int no_budget;
    exf_code stopped;
    exf_err *err;
};

/* Pays for an item of a pattern, and for what was read from one item to the next. */
static int count_item(pcre2_callout_block *at, void *ctx)
{
    exf_split_work *w = ctx;
    size_t from = w->read, to = w->read = at->current_position;
    uint64_t cost = 1 + (from < to ? to - from : from - to) / SCANNED, before = w->left;
    w->no_budget = cost > before;
    if (w->no_budget) return PCRE2_ERROR_CALLOUT;
    w->left -= cost;
    if (w->left / STOP_CHECK == before / STOP_CHECK) return 0;
    w->stopped = exf_stop_check(w->err);
    return w->stopped == EXF_OK ? 0 : PCRE2_ERROR_CALLOUT;
}

exf_code exf_split_work_new(exf_split_work **out, exf_err *err)
{
    exf_code rc = exf_mem_new(out, 1, sizeof **out, "pre-tokenizer's work", err);
    if (rc != EXF_OK) return rc;
    exf_split_work *w = *out;
    pcre2_general_context *memory = new_memory();
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
    pcre2_set_callout(w->context, count_item, w);
    return EXF_OK;
}

void exf_split_work_free(exf_split_work *w)
{
    if (!w) return;
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    exf_mem_free(w->class);
    exf_mem_free(w);
}

/* ---- cutting ----------------------------------------------------------- */

typedef struct {
    const exf_splitter *s;
    exf_split_work *w;
    exf_pretoken_fn *emit;
    void *ctx;
    const char *text, *end; /* from the character that w->class[at] is the class of */
    size_t at;
    int one_byte_each;      /* every character of the text is one byte long */
} run;

/* PCRE2's answer for the places from `at` to `last`. */
static int match_code(const run *r, const pcre2_code *code, const unsigned char *text, size_t len, size_t at, size_t last,
                      uint32_t options)
{
    exf_split_work *w = r->w;
    pcre2_set_offset_limit(w->context, last);
    int n = pcre2_match(code, text, len, at, options, w->match, w->context);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter's stack is on the heap */
        n = pcre2_match(code, text, len, at, options | PCRE2_NO_JIT, w->match, w->context);
    return n;
}

static exf_code no_budget(const exf_split_work *w, size_t at, exf_err *err)
{
    return exf_fail(err, EXF_MODEL,
                    "a pattern of the pre_tokenizer takes more than %" PRIu64 " steps on a text of %zu bytes, at character %zu of"
                    " a piece; split the text into shorter documents or use another tokenizer", w->budget, w->bytes, at);
}

/* The answer for one place, on the whole text and paid from the budget. */
static exf_code attempt_hard(const run *r, const split_step *step, const unsigned char *text, size_t len, size_t at, int *n,
                             exf_err *err)
{
    exf_split_work *w = r->w;
    w->read = at;
    w->no_budget = 0;
    w->stopped = EXF_OK;
    w->err = err;
    pcre2_set_match_limit(w->context, UINT32_MAX);
    *n = match_code(r, step->counting, text, len, at, at, 0);
    if (*n == PCRE2_ERROR_MATCHLIMIT || w->no_budget) return no_budget(w, at, err);
    return w->stopped != EXF_OK ? w->stopped : exf_stop_check(err);
}

/* The end of the window at a place: not after a line break, where "^" would not see that the text goes on; `at` if there is
 * none as near as that. */
static size_t window_end(const unsigned char *text, size_t len, size_t at)
{
    size_t end = len - at <= WINDOW ? len : at + WINDOW, most = end + WINDOW;
    while (end < len && end < most && text[end - 1] == '\n') end++;
    return end < len && text[end - 1] == '\n' ? at : end;
}

/* The answer from `at` on, window by window.  A place that reaches its window's end without an answer is tried in a window of
 * its own, and is hard if that does not do; which place takes too many steps is found by trying one after the other. */
static exf_code attempt_all(const run *r, const split_step *step, const unsigned char *text, size_t len, size_t at, int *n,
                            exf_err *err)
{
    for (int one_by_one = 0;;) {
        size_t end = window_end(text, len, at), began = at, next = one_by_one ? at + 1 : end;
        size_t last = one_by_one ? at : end < len ? end - 1 : PCRE2_UNSET;
        pcre2_set_match_limit(r->w->context, FREE_STEPS);
        *n = end == at && at < len ? PCRE2_ERROR_PARTIAL
                                   : match_code(r, step->code, text, end, at, last, end < len ? PCRE2_PARTIAL_HARD : 0);
        if (*n == PCRE2_ERROR_PARTIAL && end > at) began = pcre2_get_startchar(r->w->match);
        if (began > at) {
            at = began;
            continue;
        }
        if (*n == PCRE2_ERROR_MATCHLIMIT && !one_by_one) {
            one_by_one = 1;
            continue;
        }
        if (*n == PCRE2_ERROR_PARTIAL || *n == PCRE2_ERROR_MATCHLIMIT) {
            exf_code rc = attempt_hard(r, step, text, len, at, n, err);
            if (rc != EXF_OK) return rc;
            next = at + 1;
            one_by_one = 0;
        }
        if (*n != PCRE2_ERROR_NOMATCH || at >= len || last == PCRE2_UNSET) return EXF_OK;
        at = next;
    }
}

/* *found: whether there is a match at or after `at`, and then its bounds. */
static exf_code find_match(const run *r, const split_step *step, const unsigned char *text, size_t len, size_t at,
                           size_t bounds[2], int *found, exf_err *err)
{
    PCRE2_UCHAR why[200];
    int n;
    exf_code rc = attempt_all(r, step, text, len, at, &n, err);
    if (rc != EXF_OK) return rc;
    *found = n >= 0;
    if (n == PCRE2_ERROR_NOMATCH) return EXF_OK;
    if (n == PCRE2_ERROR_NOMEMORY) return no_memory(err);
    if (n < 0) {
        pcre2_get_error_message(n, why, sizeof why);
        return exf_fail(err, EXF_MODEL, "a pattern of the pre_tokenizer fails on a piece of %zu characters: %s", len,
                        (char *)why);
    }
    memcpy(bounds, pcre2_get_ovector_pointer(r->w->match), 2 * sizeof *bounds);
    return EXF_OK;
}

/* The text that `n` characters from r->text on take. */
static size_t text_len(const run *r, size_t n)
{
    const char *p = r->text;
    if (r->one_byte_each) return n;
    while (n--)
        do p++;
        while (p < r->end && ((unsigned char)*p & 0xc0) == 0x80);
    return (size_t)(p - r->text);
}

/* Pre-tokens come in the text's order. */
static exf_code emit_piece(run *r, const unsigned char *piece, size_t len, exf_err *err)
{
    size_t at = (size_t)(piece - r->w->class);
    r->text += text_len(r, at - r->at);
    size_t bytes = text_len(r, len);
    exf_code rc = r->emit(r->ctx, r->text, bytes, err);
    r->text += bytes;
    r->at = at + len;
    return rc;
}

/* One step on one pre-token of the step before; its pre-tokens go to the next step at once,
 * so that nothing is stored.  A pre-token is a string of its own: ^, $ and look-behind
 * do not see beyond it. */
static exf_code split_text(run *r, size_t k, const unsigned char *text, size_t len, exf_err *err)
{
    if (len == 0) return EXF_OK;
    if (k == r->s->n) return emit_piece(r, text, len, err);
    const split_step *step = &r->s->step[k];
    size_t at = 0, done = 0, last = SIZE_MAX, m[2] = {0, 0};
    int found;
    exf_code rc;
    while (at <= len) {
        EXF_TRY(find_match(r, step, text, len, at, m, &found, err));
        if (!found) break;
        if (m[0] == m[1] && m[0] == last) {
            /* An empty match right after the last one does not count; try one
             * character on.  Other empty matches cut the text in two. */
            at++;
            continue;
        }
        if (!step->only_matches) EXF_TRY(split_text(r, k + 1, text + done, m[0] - done, err));
        EXF_TRY(split_text(r, k + 1, text + m[0], m[1] - m[0], err));
        done = at = last = m[1];
    }
    rc = step->only_matches ? EXF_OK : split_text(r, k + 1, text + done, len - done, err);
out:
    return rc;
}

exf_code exf_splitter_run(const exf_splitter *s, exf_split_work *w, const char *text, size_t len, exf_pretoken_fn *emit, void *ctx,
                          exf_err *err)
{
    run r = {.s = s, .w = w, .emit = emit, .ctx = ctx, .text = text, .end = text + len};
    uint64_t most = MOST_BUDGET - w->budget, more = (uint64_t)len * BUDGET_PER_BYTE;
    if (len == 0) return EXF_OK;
    if (s->n == 0) return emit(ctx, text, len, err);
    exf_code rc = exf_mem_grow(&w->class, &w->cap, len, 1, "classes of a text's characters", err);
    if (rc != EXF_OK) return rc;
    if (more > most) more = most;
    w->budget += more;
    w->left += more;
    w->bytes += len;
    size_t n = exf_alphabet_map(s->alphabet, text, len, w->class);
    r.one_byte_each = n == len;
    return split_text(&r, 0, w->class, n, err);
}

/* ---- steps ---------------------------------------------------------- */

static exf_code compile_pattern(pcre2_code **out, const exf_splitter *s, const exf_text *bytes, uint32_t options, uint32_t jit,
                                const exf_regex_source *from, const char *pattern, exf_err *err)
{
    int code;
    PCRE2_SIZE at;
    PCRE2_UCHAR why[200];
    *out = pcre2_compile((PCRE2_SPTR)bytes->s, bytes->len, PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT | options, &code, &at,
                         s->context);
    if (!*out && code == PCRE2_ERROR_HEAP_FAILED) return no_memory(err);
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
    if (s->n == MOST_STEPS)
        return exf_fail(err, EXF_MODEL, "%s: pre_tokenizer has more than %d steps", from->file, MOST_STEPS);
    split_step *step = &s->step[s->n++];
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
    memory = new_memory();
    (*out)->context = memory ? pcre2_compile_context_create(memory) : NULL;
    pcre2_general_context_free(memory);
    if (!(*out)->context) return no_memory(err);
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
