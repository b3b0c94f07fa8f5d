/* tokenizer_split.c - the pre-tokenizer compiles its steps, each a pattern on the alphabet of all patterns, and cuts text into
 * pre-tokens by them, within a budget.  tokenizer_split_load.c reads the steps.
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
    if (*n == PCRE2_ERROR_MATCHLIMIT || w->no_budget)
        return exf_fail(err, EXF_MODEL,
                        "a pattern of the pre_tokenizer takes more than %" PRIu64 " steps on a text of %zu bytes, at character %zu"
                        " of a piece; split the text into shorter documents or use another tokenizer", w->budget, w->bytes, at);
    return w->stopped != EXF_OK ? w->stopped : exf_stop_check(err);
}

/* The answer from `at` on, window by window.  A place that reaches its window's end without an answer is tried in a window of
 * its own, and is hard if that does not do; which place takes too many steps is found by trying one after the other. */
static exf_code attempt_all(const run *r, const split_step *step, const unsigned char *text, size_t len, size_t at, int *n,
                            exf_err *err)
{
    for (int one_by_one = 0;;) {
        /* The window ends not after a line break, where "^" would not see that the text goes on; at `at` if there is no other
         * place as near as that. */
        size_t end = len - at <= WINDOW ? len : at + WINDOW, most = end + WINDOW, began = at;
        while (end < len && end < most && text[end - 1] == '\n') end++;
        if (end < len && text[end - 1] == '\n') end = at;
        size_t next = one_by_one ? at + 1 : end;
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

/* One step on one pre-token of the step before; its pre-tokens go to the next step at once,
 * so that nothing is stored.  A pre-token is a string of its own: ^, $ and look-behind
 * do not see beyond it. */
static exf_code split_text(run *r, size_t k, const unsigned char *text, size_t len, exf_err *err)
{
    if (len == 0) return EXF_OK;
    size_t at = 0, done = 0, last = SIZE_MAX, m[2] = {0, 0};
    int found;
    exf_code rc;
    if (k == r->s->n) { /* pre-tokens come in the text's order */
        at = (size_t)(text - r->w->class);
        r->text += text_len(r, at - r->at);
        size_t bytes = text_len(r, len);
        rc = r->emit(r->ctx, r->text, bytes, err);
        r->text += bytes;
        r->at = at + len;
        return rc;
    }
    const split_step *step = &r->s->step[k];
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

/* Rust's is_numeric() is general category N of a younger Unicode than the patterns'. */
static exf_code put_digits(exf_alphabet *a, exf_text *out, int together, exf_err *err)
{
    exf_chars digits = {0};
    exf_code rc;
    EXF_TRY(exf_chars_add_digits(&digits, err));
    exf_chars_sort(&digits);
    if (!out) {
        rc = exf_alphabet_tell(a, &digits, err);
        goto out;
    }
    exf_alphabet_write(a, &digits, out);
    if (together) exf_text_append(out, "+", 1);
    rc = exf_text_end(out, err);
out:
    exf_chars_free(&digits);
    return rc;
}

exf_code exf_splitter_add(exf_splitter *s, exf_pattern_kind kind, const char *pattern, size_t len, int only_matches,
                          const exf_regex_source *from, exf_err *err)
{
    exf_text bytes = {0}, *out = s->closed ? &bytes : NULL;
    exf_code rc;
    if (out) exf_text_append(out, "", 0);
    if (kind == EXF_PATTERN_REGEX) EXF_TRY(exf_regex_translate(out, s->alphabet, pattern, len, from, err));
    else if (kind == EXF_PATTERN_LITERAL) EXF_TRY(exf_regex_literal(out, s->alphabet, pattern, len, err));
    else EXF_TRY(put_digits(s->alphabet, out, kind == EXF_PATTERN_DIGITS, err));
    if (!out) return EXF_OK;
    if (s->n == MOST_STEPS) {
        rc = exf_fail(err, EXF_MODEL, "%s: pre_tokenizer has more than %d steps", from->file, MOST_STEPS);
        goto out;
    }
    split_step *step = &s->step[s->n++];
    step->only_matches = only_matches;
    EXF_TRY(compile_pattern(&step->code, s, out, 0, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD, from, pattern, err));
    rc = compile_pattern(&step->counting, s, out, PCRE2_AUTO_CALLOUT, PCRE2_JIT_COMPLETE, from, pattern, err);
out:
    exf_text_free(&bytes);
    return rc;
}

exf_code exf_splitter_new(exf_splitter **out, const char *where, exf_err *err)
{
    exf_code rc = exf_mem_new(out, 1, sizeof **out, "pre-tokenizer", err);
    if (rc != EXF_OK) return rc;
    pcre2_general_context *memory = new_memory();
    (*out)->context = memory ? pcre2_compile_context_create(memory) : NULL;
    pcre2_general_context_free(memory);
    if (!(*out)->context) return no_memory(err);
    pcre2_set_newline((*out)->context, PCRE2_NEWLINE_LF);
    return exf_alphabet_new(&(*out)->alphabet, where, err);
}

void exf_splitter_close(exf_splitter *s)
{
    exf_alphabet_close(s->alphabet);
    s->closed = 1;
}

exf_code exf_splitter_of_pattern(exf_splitter **out, const char *pattern, size_t len, const char *file, const char *what,
                                 exf_err *err)
{
    const exf_regex_source from = {file, what, 1};
    exf_code rc;
    EXF_TRY(exf_splitter_new(out, file, err));
    EXF_TRY(exf_splitter_add(*out, EXF_PATTERN_REGEX, pattern, len, 1, &from, err));
    exf_splitter_close(*out);
    rc = exf_splitter_add(*out, EXF_PATTERN_REGEX, pattern, len, 1, &from, err);
out:
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
