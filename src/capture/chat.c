/* chat.c - recognises chat templates of plain kinds, and renders conversations in their form; see chat.h. */
#include "capture/chat_internal.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { MOST_CONFIG = 64 << 20, MOST_TEMPLATE = 1 << 20 };

/* ---- templates by their squeezed text ------------------------------------------------------------------------ */

/* The squeezed text of a template has no blanks but between words and inside literals; literals stand in single quotes, adjacent
 * ones are one; message['role'] is message.role; blanks between tags that Jinja drops are gone.  A newline in a literal is \n,
 * whether the template has it so or as the character, which is what "\n" of a JSON file becomes. */

#define BEFORE "{%if not add_generation_prompt is defined%}{%set add_generation_prompt=false%}{%endif%}"

static const struct { exf_chat_kind kind; const char *loop, *prompt; } plain[] = {
    {EXF_CHAT_CHATML,
     "{%for message in messages%}{{'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>\\n'}}{%endfor%}",
     "{%if add_generation_prompt%}{{'<|im_start|>assistant\\n'}}{%endif%}"},
    {EXF_CHAT_DEEPSEEK_V2,
     "{{bos_token}}{%for message in messages%}{%if message.role=='user'%}{{'User: '+message.content+'\\n\\n'}}"
     "{%elif message.role=='assistant'%}{{'Assistant: '+message.content+eos_token}}"
     "{%elif message.role=='system'%}{{message.content+'\\n\\n'}}{%endif%}{%endfor%}",
     "{%if add_generation_prompt%}{{'Assistant:'}}{%endif%}"},
};

static int is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Copies the literal at *s, whose closing quote *s then follows. */
static void squeeze_literal(const char **s, exf_text *out)
{
    char quote = *(*s)++;
    size_t n = out->len;
    if (n >= 2 && memcmp(out->s + n - 2, "'+", 2) == 0) out->s[out->len -= 2] = 0; /* the literal before goes on */
    else exf_text_append(out, "'", 1);
    while (**s && **s != quote) {
        size_t some = **s == '\\' && (*s)[1] ? 2 : 1;
        if (**s == '\n') exf_text_append(out, "\\n", 2);
        else exf_text_append(out, *s, some);
        *s += some;
    }
    if (**s) ++*s;
    exf_text_append(out, "'", 1);
}

/* Writes message['role'] at s as .role; returns how long it is there, or 0. */
static size_t squeeze_member(const char *s, exf_text *out)
{
    static const char *const names[] = {"role", "content"};
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(names[i]);
        if (s[0] != '[' || (s[1] != '\'' && s[1] != '"') || strncmp(s + 2, names[i], n) != 0 || s[n + 2] != s[1] || s[n + 3] != ']')
            continue;
        exf_text_appendf(out, ".%s", names[i]);
        return n + 4;
    }
    return 0;
}

/* Squeezes the tag at s, "{%- ... -%}" or "{{ ... }}", with [open, close) inside, and moves *s after it. */
static void squeeze_tag(const char **s, exf_text *out)
{
    char end[3] = {(*s)[1] == '{' ? '}' : '%', '}', 0};
    exf_text_append(out, *s, 2);
    *s += 2;
    if (**s == '-') ++*s;
    for (int gap = 0; **s;) {
        const char *at = *s + (**s == '-');
        if (strncmp(at, end, 2) == 0) {
            *s = at + 2;
            break;
        }
        if (isspace((unsigned char)**s)) {
            gap = 1;
            ++*s;
            continue;
        }
        if (gap && out->len && is_word(out->s[out->len - 1]) && is_word(**s)) exf_text_append(out, " ", 1);
        gap = 0;
        size_t n = squeeze_member(*s, out);
        if (n) *s += n;
        else if (**s == '\'' || **s == '"') squeeze_literal(s, out);
        else exf_text_append(out, (*s)++, 1);
    }
    exf_text_append(out, end, 2);
}

/* Returns 1 for blanks at s between two tags that Jinja drops, n of them, as transformers has it (trim_blocks, lstrip_blocks). */
static int is_dropped(const char *text, const char *s, size_t n)
{
    int after_block = s - text >= 2 && memcmp(s - 2, "%}", 2) == 0, at_start = s == text || after_block;
    if (s - text >= 3 && s[-3] == '-') return 1;                               /* -%} or -}} */
    if (s[n] == '{' && s[n + 1] && s[n + 2] == '-') return 1;                  /* {%- or {{- */
    if (!s[n]) return n == 1 && *s == '\n';                                    /* the end of the file */
    if (n == 1 && *s == '\n') return after_block;
    return at_start && s[0] == '\n' && !memchr(s + 1, '\n', n - 1) && s[n + 1] == '%'; /* a newline, then the blanks of a block */
}

static exf_code squeeze(const char *text, exf_text *out, exf_err *err)
{
    for (const char *s = text; *s;) {
        size_t n = strspn(s, " \t\r\n");
        if (n && ((s[n] == '{' && (s[n + 1] == '%' || s[n + 1] == '{')) || !s[n]) && is_dropped(text, s, n)) s += n;
        else if (*s == '{' && (s[1] == '%' || s[1] == '{')) squeeze_tag(&s, out);
        else exf_text_append(out, s++, 1);
    }
    return exf_text_end(out, err);
}

static exf_code recognise_plain(exf_chat_kind *out, const char *text, exf_err *err)
{
    exf_text squeezed = {0};
    exf_code rc;
    EXF_TRY(squeeze(text, &squeezed, err));
    const char *s = squeezed.s ? squeezed.s : "";
    if (exf_starts_with(s, BEFORE)) s += strlen(BEFORE);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        size_t n = strlen(plain[i].loop);
        if (strncmp(s, plain[i].loop, n) == 0 && (!s[n] || strcmp(s + n, plain[i].prompt) == 0)) *out = plain[i].kind;
    }
out:
    exf_text_free(&squeezed);
    return rc;
}

/* ---- released templates by their digest ------------------------------------------------------------------------ */

/* SHA-256 of the text without its last newline. */
static const struct { exf_chat_kind kind; const char *sha256; } released[] = {
    {EXF_CHAT_QWEN3, "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5"}, /* Qwen3 */
    {EXF_CHAT_CHATML, "32bf2564d2245b98298677d3ac2332ab50bc3279740c13c3974689464b38aa3c"}, /* Qwen3-Coder */
    {EXF_CHAT_CHATML, "eae48a3307931acb10a6fce475a36b711709672ea79ee1a9bc52f083d8b0a2af"}, /* Qwen3-Coder, later */
};

exf_code exf_chat_recognise(exf_chat_kind *out, const char *text, exf_err *err)
{
    char hex[EXF_SHA256_HEX];
    size_t n = strlen(text);
    exf_code rc = exf_hash_bytes(text, n && text[n - 1] == '\n' ? n - 1 : n, hex, err);
    *out = EXF_CHAT_NONE;
    if (rc == EXF_OK) rc = recognise_plain(out, text, err);
    for (size_t i = 0; rc == EXF_OK && i < sizeof released / sizeof *released; i++)
        if (strcmp(hex, released[i].sha256) == 0) *out = released[i].kind;
    return rc;
}

/* ---- the template of a checkpoint -------------------------------------------------------------------------------- */

/* Returns the text of a member, or of its "content", as tokens stand in tokenizer_config.json; "" where there is none. */
static const char *token_of(const exf_json *config, const char *key)
{
    const exf_json *j = exf_json_get(config, key);
    const char *text = exf_json_string(exf_json_type(j) == EXF_JSON_OBJECT ? exf_json_get(j, "content") : j, NULL);
    return text ? text : "";
}

static const char *template_of(const exf_json *config)
{
    const exf_json *j = exf_json_get(config, "chat_template");
    if (exf_json_type(j) != EXF_JSON_ARRAY) return exf_json_string(j, NULL);
    for (size_t i = 0; i < exf_json_size(j); i++) {
        const char *name = exf_json_string(exf_json_get(exf_json_at(j, i), "name"), NULL);
        if (name && strcmp(name, "default") == 0) return exf_json_string(exf_json_get(exf_json_at(j, i), "template"), NULL);
    }
    return NULL;
}

/* Sets *adds where the tokenizer puts the token before every text by itself. */
static exf_code adds_itself(int *adds, const exf_tokenizer *t, const char *token, exf_err *err)
{
    exf_ids none = {0}, one = {0};
    exf_code rc;
    EXF_TRY(exf_tokenizer_encode(t, "", 0, &none, err));
    EXF_TRY(exf_tokenizer_encode(t, token, strlen(token), &one, err));
    *adds = none.n >= 1 && one.n >= 2 && one.id[0] == none.id[0] && one.id[1] == one.id[0];
out:
    exf_ids_free(&none);
    exf_ids_free(&one);
    return rc;
}

/* Takes what the form needs of the configuration. */
static exf_code take_tokens(exf_chat_form *f, const exf_json *config, const exf_tokenizer *t, exf_err *err)
{
    const char *bos = token_of(config, "bos_token");
    int adds = 0;
    exf_code rc;
    EXF_TRY(adds_itself(&adds, t, bos, err));
    EXF_TRY(exf_mem_strdup(&f->bos, adds ? "" : bos, "token of a chat", err));
    EXF_TRY(exf_mem_strdup(&f->eos, token_of(config, "eos_token"), "token of a chat", err));
out:
    return rc;
}

/* Refuses a model without a template.  An instruction and its answer (Alpaca) are strings, and may be one text as they stand. */
static exf_code refuse_no_template(const char *dir, const char *field, exf_err *err)
{
    static const char none[] = "neither chat_template.jinja nor chat_template in tokenizer_config.json";
    if (exf_starts_with(field, "instruction+"))
        return exf_fail(err, EXF_MODEL,
                        "%s has no chat template, %s; take the members as they stand for one text, with --text-field %s (in a "
                        "manifest format: jsonl)", dir, none, field);
    return exf_fail(err, EXF_MODEL,
                    "%s has no chat template, %s; write the conversations as texts, a member \"text\" of each line", dir, none);
}

exf_code exf_chat_form_of_model(exf_chat_form *out, const char *dir, const char *field, const exf_tokenizer *t, exf_err *err)
{
    char *file = NULL, *config_path = NULL, *own = NULL, command[EXF_SCRIPT_COMMAND];
    exf_json *config = NULL;
    const char *text = NULL;
    size_t n;
    int has_file = 0, has_config = 0;
    exf_code rc;
    memset(out, 0, sizeof *out);
    EXF_TRY(exf_path_join(&file, dir, "chat_template.jinja", err));
    EXF_TRY(exf_path_join(&config_path, dir, "tokenizer_config.json", err));
    EXF_TRY(exf_path_look(file, &has_file, err));
    EXF_TRY(exf_path_look(config_path, &has_config, err));
    if (has_config) EXF_TRY(exf_json_load(&config, config_path, MOST_CONFIG, err));
    if (has_file) EXF_TRY(exf_file_slurp(file, MOST_TEMPLATE, &own, &n, err));
    text = own ? own : template_of(config);
    if (!text) {
        rc = refuse_no_template(dir, field, err);
        goto out;
    }
    EXF_TRY(exf_chat_recognise(&out->kind, text, err));
    if (out->kind == EXF_CHAT_NONE)
        rc = exf_fail(err, EXF_MODEL, "the chat template of %s is a program that is not among the plain ones; " EXF_RENDER_IT, dir,
                      exf_script_command(command, EXF_RENDER_SCRIPT));
    else
        rc = take_tokens(out, config, t, err);
out:
    exf_mem_free(file);
    exf_mem_free(config_path);
    exf_mem_free(own);
    exf_json_free(config);
    return rc;
}

void exf_chat_form_free(exf_chat_form *f)
{
    exf_mem_free(f->bos);
    exf_mem_free(f->eos);
    memset(f, 0, sizeof *f);
}

/* ---- rendering ----------------------------------------------------------------------------------------------------- */

static int holds(const exf_message *m, const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= m->len; i++)
        if (memcmp(m->content + i, word, n) == 0) return 1;
    return 0;
}

/* Refuses what the template takes apart: reasoning inside an answer, and the answer of a tool in a user's place. */
static exf_code check_qwen3(const exf_message *m, size_t i, exf_err *err)
{
    int user = strcmp(m->role, "user") == 0, assistant = strcmp(m->role, "assistant") == 0;
    char command[EXF_SCRIPT_COMMAND];
    const char *word = assistant && holds(m, "</think>")     ? "</think>"
                       : user && holds(m, "<tool_response>") ? "<tool_response>"
                                                             : NULL;
    if (!word) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "message %zu holds %s, which the chat template takes apart; " EXF_RENDER_IT, i + 1, word,
                    exf_script_command(command, EXF_RENDER_SCRIPT));
}

/* thinks: an empty thought stands before the content, whose first newlines go. */
static void render_chatml(const exf_message *m, int thinks, exf_text *out)
{
    size_t skip = 0;
    if (thinks)
        while (skip < m->len && m->content[skip] == '\n') skip++;
    exf_text_appendf(out, "<|im_start|>%s\n%s", m->role, thinks ? "<think>\n\n</think>\n\n" : "");
    exf_text_append(out, m->content + skip, m->len - skip);
    exf_text_appendf(out, "<|im_end|>\n");
}

static void render_deepseek_v2(const exf_chat_form *f, const exf_message *m, exf_text *out)
{
    int user = strcmp(m->role, "user") == 0, assistant = strcmp(m->role, "assistant") == 0;
    exf_text_appendf(out, "%s", user ? "User: " : assistant ? "Assistant: " : "");
    exf_text_append(out, m->content, m->len);
    exf_text_appendf(out, "%s", assistant ? f->eos : "\n\n");
}

exf_code exf_chat_render(const exf_chat_form *f, const exf_json *object, const char *field, exf_text *out, exf_err *err)
{
    exf_messages all = {0};
    int asked = 0; /* a user has spoken */
    exf_code rc;
    EXF_TRY(exf_messages_read(&all, object, field, err));
    if (f->kind == EXF_CHAT_DEEPSEEK_V2) exf_text_appendf(out, "%s", f->bos);
    for (size_t i = 0; i < all.n; i++) {
        const exf_message *m = &all.message[i];
        if (f->kind == EXF_CHAT_QWEN3) EXF_TRY(check_qwen3(m, i, err));
        asked |= strcmp(m->role, "user") == 0;
        if (f->kind == EXF_CHAT_DEEPSEEK_V2) render_deepseek_v2(f, m, out);
        else render_chatml(m, f->kind == EXF_CHAT_QWEN3 && asked && i + 1 == all.n && strcmp(m->role, "assistant") == 0, out);
    }
    rc = exf_text_end(out, err);
out:
    exf_messages_free(&all);
    return rc;
}
