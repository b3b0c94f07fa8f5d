/* program_complete.c - the words, values and files that may follow on a command line, from the tables of options; see program.h. */
#include "cli/program.h"

#include "base/mem.h"

#include <ctype.h>
#include <string.h>

#define DIRECTORIES "*/"

/* The word to be completed, and what was found of it. */
typedef struct {
    const char *word;
    size_t front; /* bytes of it before the part that is looked for: "--output=", "runtime.backend=" */
    exf_text *out;
} completion;

/* Offers n bytes of a word, and an ending, if the word that is typed is a part of that. */
static void offer(const completion *c, const char *word, size_t n, const char *ending, const char *meaning)
{
    const char *typed = c->word + c->front;
    size_t len = strlen(typed);
    if (len > n + strlen(ending) || strncmp(word, typed, len < n ? len : n) != 0) return;
    if (len > n && strncmp(ending, typed + n, len - n) != 0) return;
    exf_text_appendf(c->out, "%.*s%.*s%s%s%s\n", (int)c->front, c->word, (int)n, word, ending, meaning ? "\t" : "",
                     meaning ? meaning : "");
}

static void offer_files(const completion *c, const char *pattern)
{
    exf_text_appendf(c->out, "@file %s %.*s\n", pattern, (int)c->front, c->word);
}

/* Offers the words of "a|b|c". */
static void offer_words(const completion *c, const char *words)
{
    for (size_t n; *words; words += n + (words[n] == '|')) {
        n = strcspn(words, "|");
        offer(c, words, n, "", NULL);
    }
}

static void offer_options(const completion *c, const exf_program *p, const exf_opt *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!rows[i].flag) continue;
        offer(c, "--", 2, rows[i].flag, rows[i].help);
        if (rows[i].type == EXF_OPT_FLAG && rows[i].fallback && strcmp(rows[i].fallback, "true") == 0)
            offer(c, "--no-", 5, rows[i].flag, rows[i].help);
    }
    if (p->keys) offer(c, "--set", 5, "", "set a recipe key from the command line");
}

/* Adds the endings of the files among arguments, "RECIPE.yaml FILE.h5" as "*.yaml|*.h5", each once. */
static void add_endings(exf_text *pattern, const char *arguments)
{
    for (const char *dot = arguments; (dot = strchr(dot, '.')); dot++) {
        int known = 0, n = 1;
        while (isalnum((unsigned char)dot[n])) n++;
        for (const char *at = pattern->len ? pattern->s : ""; (at = strchr(at, '.')); at++)
            known |= strncmp(at, dot, (size_t)n) == 0 && !isalnum((unsigned char)at[n]);
        if (n > 1 && !known) exf_text_appendf(pattern, "%s*%.*s", pattern->len ? "|" : "", n, dot);
    }
}

static exf_code offer_arguments(const completion *c, const exf_program *p, int is_first, exf_err *err)
{
    exf_text pattern = {0};
    exf_code rc;
    add_endings(&pattern, p->arguments);
    for (size_t i = 0; i < p->n_commands; i++) {
        if (is_first) offer(c, p->commands[i].name, strlen(p->commands[i].name), "", NULL);
        add_endings(&pattern, p->commands[i].arguments);
    }
    rc = exf_text_end(&pattern, err);
    if (rc == EXF_OK) offer_files(c, pattern.len ? pattern.s : "*");
    exf_text_free(&pattern);
    return rc;
}

/* Returns the row whose value follows n bytes of a name, "--backend" or "-t", or "runtime.backend" as a key; NULL: none. */
static const exf_opt *find_row(const exf_opt *rows, size_t n_rows, const char *name, size_t n, int is_key)
{
    for (size_t i = 0; i < n_rows; i++) {
        const exf_opt *row = &rows[i];
        const char *known = is_key ? row->key : row->flag;
        size_t dashes = is_key ? 0 : 2;
        if (!known || (!is_key && row->type == EXF_OPT_FLAG)) continue;
        if (!is_key && row->letter && n == 2 && name[0] == '-' && name[1] == row->letter) return row;
        if (n == strlen(known) + dashes && strncmp(name, "--", dashes) == 0 && strncmp(name + dashes, known, n - dashes) == 0)
            return row;
    }
    return NULL;
}

/* Completes a command line of `exfold`, or of the program that its first word names. */
static exf_code complete_programs(const exf_program *p, const char *const *words, size_t n, completion *c, exf_err *err)
{
    const exf_program *other;
    exf_err unknown;
    exf_opt *rows;
    size_t n_rows;
    if (n > 1 && strcmp(words[0], "help") != 0) {
        if (exf_program_require(words[0], &other, &unknown) != EXF_OK) return EXF_OK;
        return exf_complete(other, words + 1, n - 1, c->out, err);
    }
    for (size_t i = 0; n <= 2 && (other = exf_program_at(i)); i++) {
        const char *word = other->name + strlen("exfold-");
        offer(c, word, strlen(word), "", other->brief);
    }
    if (n > 1) return exf_text_end(c->out, err);
    exf_code rc = exf_program_rows(p, 0, &rows, &n_rows, NULL, err);
    if (rc != EXF_OK) return rc;
    offer(c, "help", 4, "", "explains a program");
    offer_options(c, p, rows, n_rows);
    exf_mem_free(rows);
    return exf_text_end(c->out, err);
}

exf_code exf_complete(const exf_program *p, const char *const *words, size_t n, exf_text *out, exf_err *err)
{
    completion c = {.word = words[n - 1], .out = out};
    const char *name = n > 1 ? words[n - 2] : "", *value = c.word, *equals = strchr(value, '=');
    size_t n_name = strlen(name), n_rows;
    exf_opt *rows = NULL;
    const exf_opt *row;
    exf_code rc;
    if (p->runs_others) return complete_programs(p, words, n, &c, err);
    EXF_TRY(exf_program_rows(p, 0, &rows, &n_rows, NULL, err));
    if (exf_starts_with(value, "--") && equals) { /* --name=value in one word */
        name = c.word;
        n_name = (size_t)(equals - name);
        value = equals + 1;
        equals = strchr(value, '=');
    }
    int is_set = p->keys && n_name == 5 && strncmp(name, "--set", 5) == 0;
    if (is_set && equals) {
        name = value;
        n_name = (size_t)(equals - name);
        value = equals + 1;
    }
    c.front = (size_t)(value - c.word);
    if (is_set && !equals) {
        for (size_t i = 0; i < n_rows; i++)
            if (rows[i].key) offer(&c, rows[i].key, strlen(rows[i].key), "=", rows[i].help);
        exf_text_appendf(out, "@nospace\n");
    } else if ((row = find_row(rows, n_rows, name, n_name, is_set))) {
        const char *values = row->values ? row->values : "";
        if (row->type == EXF_OPT_FLAG) offer_words(&c, "true|false");
        if (row->type == EXF_OPT_CHOICE) offer_words(&c, values);
        if (row->type == EXF_OPT_FILES || (row->type == EXF_OPT_TEXT && strcmp(values, "FILE") == 0)) offer_files(&c, "*");
        if (row->type == EXF_OPT_TEXT && strcmp(values, "DIR") == 0) offer_files(&c, DIRECTORIES);
    } else if (is_set) {
        /* a key that the program does not read has no values */
    } else if (c.word[0] == '-') {
        c.front = 0;
        offer_options(&c, p, rows, n_rows);
    } else {
        EXF_TRY(offer_arguments(&c, p, n == 1, err));
    }
    EXF_TRY(exf_text_end(out, err));
out:
    exf_mem_free(rows);
    return rc;
}
