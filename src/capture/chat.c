/* chat.c - recognises chat templates of plain kinds, reads conversations in the shapes that data sets have, and renders them in the
 * template's form; see chat.h. */
#include "capture/chat.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "capture/members.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { MOST_CONFIG = 64 << 20, MOST_TEMPLATE = 1 << 20 };

/* Ends a refusal: what to do where only the template itself knows. */
#define RENDER_IT "render the conversations with: %s IN.jsonl OUT.jsonl"

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

static exf_code recognise_plain(exf_chat_kind *out, const char *text, exf_err *err)
{
    exf_text squeezed = {0};
    exf_code rc;
    for (const char *s = text; *s;) {
        size_t n = strspn(s, " \t\r\n");
        if (n && ((s[n] == '{' && (s[n + 1] == '%' || s[n + 1] == '{')) || !s[n]) && is_dropped(text, s, n)) s += n;
        else if (*s == '{' && (s[1] == '%' || s[1] == '{')) squeeze_tag(&s, &squeezed);
        else exf_text_append(&squeezed, s++, 1);
    }
    EXF_TRY(exf_text_end(&squeezed, err));
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
    char *file = NULL, *config_path = NULL, *own = NULL, command[EXF_RENDER_COMMAND];
    exf_json *config = NULL;
    size_t n;
    int has_file = 0, has_config = 0, adds = 0;
    exf_code rc;
    *out = (exf_chat_form){.model = dir};
    EXF_TRY(exf_path_join(&file, dir, "chat_template.jinja", err));
    EXF_TRY(exf_path_join(&config_path, dir, "tokenizer_config.json", err));
    EXF_TRY(exf_path_look(file, &has_file, err));
    EXF_TRY(exf_path_look(config_path, &has_config, err));
    if (has_config) EXF_TRY(exf_json_load(&config, config_path, MOST_CONFIG, err));
    if (has_file) EXF_TRY(exf_file_slurp(file, MOST_TEMPLATE, &own, &n, err));
    const exf_json *templates = exf_json_get(config, "chat_template"), *one = templates; /* one, or several with names */
    if (exf_json_type(templates) == EXF_JSON_ARRAY) one = NULL;
    for (size_t i = 0; !one && i < exf_json_size(templates); i++) {
        const char *name = exf_json_string(exf_json_get(exf_json_at(templates, i), "name"), NULL);
        if (name && strcmp(name, "default") == 0) one = exf_json_get(exf_json_at(templates, i), "template");
    }
    const char *text = own ? own : exf_json_string(one, NULL);
    if (!text) {
        rc = refuse_no_template(dir, field, err);
        goto out;
    }
    EXF_TRY(exf_chat_recognise(&out->kind, text, err));
    if (out->kind == EXF_CHAT_NONE) {
        rc = exf_fail(err, EXF_MODEL, "the chat template of %s is a program that is not among the plain ones; " RENDER_IT, dir,
                      exf_render_command(command, dir));
        goto out;
    }
    const char *bos = token_of(config, "bos_token");
    EXF_TRY(adds_itself(&adds, t, bos, err));
    EXF_TRY(exf_mem_strdup(&out->bos, adds ? "" : bos, "token of a chat", err));
    EXF_TRY(exf_mem_strdup(&out->eos, token_of(config, "eos_token"), "token of a chat", err));
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

/* ---- the messages of a conversation ------------------------------------------------------------------------------- */

typedef struct {
    const char *role, *content; /* role: "system", "user" or "assistant" */
    size_t len;                 /* of content */
} message;

/* The messages borrow from the line, or from `joined`. */
typedef struct {
    message *message;
    size_t n, cap;
    exf_text joined;
    const char *model; /* directory, for the command that renders; NULL: not known */
} messages;

/* What each role is called in ShareGPT's turns, {"from": ..., "value": ...}, where others have {"role": ..., "content": ...}. */
static const struct { const char *from, *role; } roles[] = {
    {"system", "system"}, {"human", "user"}, {"user", "user"}, {"gpt", "assistant"}, {"assistant", "assistant"},
};

/* Refuses members that templates read beside role and content, unless they are null or empty. */
static exf_code refuse_members(const messages *m, const exf_json *object, const char *const *names, const char *where,
                               exf_err *err)
{
    char command[EXF_RENDER_COMMAND];
    for (; *names; names++) {
        const exf_json *j = exf_json_get(object, *names);
        const char *text = exf_json_string(j, NULL);
        if (exf_json_type(j) == EXF_JSON_NULL || (text && !*text) || (exf_json_type(j) == EXF_JSON_ARRAY && !exf_json_size(j)))
            continue;
        return exf_fail(err, EXF_MODEL, "%s has \"%s\", which only the chat template itself knows to render; " RENDER_IT, where,
                        *names, exf_render_command(command, m->model));
    }
    return EXF_OK;
}

static exf_code add_message(messages *m, const char *role, const char *content, size_t len, exf_err *err)
{
    exf_code rc = exf_mem_grow(&m->message, &m->cap, m->n + 1, sizeof *m->message, "messages of a conversation", err);
    if (rc == EXF_OK) m->message[m->n++] = (message){role, content, len};
    return rc;
}

static exf_code read_turn(messages *m, const exf_json *j, exf_err *err)
{
    static const char *const others[] = {"tool_calls", "tool_call_id", "function_call", "reasoning_content", "reasoning",
                                         "thinking", NULL};
    int is_from = !exf_json_get(j, "role") && exf_json_get(j, "from");
    const char *role_name = is_from ? "from" : "role", *content_name = is_from ? "value" : "content";
    const exf_json *content = exf_json_get(j, content_name);
    const char *word = exf_json_string(exf_json_get(j, role_name), NULL), *role = NULL; /* as all templates know it */
    char where[40], command[EXF_RENDER_COMMAND];
    size_t len;
    snprintf(where, sizeof where, "message %zu", m->n + 1);
    for (size_t i = 0; word && !role && i < sizeof roles / sizeof *roles; i++)
        if (strcmp(word, is_from ? roles[i].from : roles[i].role) == 0) role = roles[i].role;
    if (exf_json_type(j) != EXF_JSON_OBJECT)
        return exf_fail(err, EXF_MODEL, "%s is %s, expected an object with \"role\" and \"content\"", where, exf_json_type_name(j));
    if (!word) return exf_fail(err, EXF_MODEL, "%s has no \"%s\"", where, role_name);
    if (!role)
        return exf_fail(err, EXF_MODEL, "%s is of role \"%.40s\", expected %s; " RENDER_IT, where, word,
                        is_from ? "system, human or gpt" : "system, user or assistant",
                        exf_render_command(command, m->model));
    const char *text = exf_json_string(content, &len);
    if (!text)
        return exf_fail(err, EXF_MODEL, "%s: its \"%s\" is %s, expected a string; " RENDER_IT, where, content_name,
                        content ? exf_json_type_name(content) : "missing", exf_render_command(command, m->model));
    exf_code rc = refuse_members(m, j, others, where, err);
    return rc == EXF_OK ? add_message(m, role, text, len, err) : rc;
}

/* Reads an instruction, perhaps an input to it, and the answer. */
static exf_code read_strings(messages *m, const exf_members *found, exf_err *err)
{
    size_t last = found->n - 1, len;
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < last; i++) {
        const char *text = exf_json_string(found->part[i], &len);
        if (!text && i > 0 && exf_json_type(found->part[i]) == EXF_JSON_NULL) continue;
        if (!text)
            return exf_fail(err, EXF_MODEL, "\"%s\" is %s, expected a string", found->name[i],
                            found->part[i] ? exf_json_type_name(found->part[i]) : "missing");
        if (len) exf_text_appendf(&m->joined, "%s", m->joined.len ? "\n" : "");
        exf_text_append(&m->joined, text, len);
    }
    const char *answer = exf_json_string(found->part[last], &len);
    if (!answer)
        return exf_fail(err, EXF_MODEL, "\"%s\" is %s, expected a string", found->name[last],
                        found->part[last] ? exf_json_type_name(found->part[last]) : "missing");
    EXF_TRY(exf_text_end(&m->joined, err));
    EXF_TRY(add_message(m, "user", m->joined.s ? m->joined.s : "", m->joined.len, err));
    rc = add_message(m, "assistant", answer, len, err);
out:
    return rc;
}

/* Reads the conversation of an object: a list of turns, lists of turns one after another (prompt+completion), or strings, of which
 * the last is the assistant's and those before, but for empty ones, are the user's, a line each (instruction+input+output). */
static exf_code read_messages(messages *m, const exf_json *object, const char *field, exf_err *err)
{
    static const char *const others[] = {"tools", "functions", "documents", NULL};
    exf_members found;
    exf_code rc;
    (void)exf_members_find(&found, object, field);
    EXF_TRY(refuse_members(m, object, others, "the conversation", err));
    if (found.n > 1 && exf_json_string(found.part[0], NULL)) return read_strings(m, &found, err);
    for (size_t i = 0; i < found.n; i++) {
        const exf_json *list = found.part[i];
        size_t n = exf_json_size(list);
        if (exf_json_type(list) != EXF_JSON_ARRAY || n == 0)
            return exf_fail(err, EXF_MODEL, "\"%s\" is %s, expected a list of messages", found.name[i],
                            n ? exf_json_type_name(list) : "empty");
        for (size_t k = 0; k < n; k++) EXF_TRY(read_turn(m, exf_json_at(list, k), err));
    }
out:
    return rc;
}

/* ---- rendering ----------------------------------------------------------------------------------------------------- */

static int holds(const message *m, const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= m->len; i++)
        if (memcmp(m->content + i, word, n) == 0) return 1;
    return 0;
}

/* Refuses what the template takes apart: reasoning inside an answer, and the answer of a tool in a user's place. */
static exf_code check_qwen3(const message *m, size_t i, const char *model, exf_err *err)
{
    int user = strcmp(m->role, "user") == 0, assistant = strcmp(m->role, "assistant") == 0;
    char command[EXF_RENDER_COMMAND];
    const char *word = assistant && holds(m, "</think>")     ? "</think>"
                       : user && holds(m, "<tool_response>") ? "<tool_response>"
                                                             : NULL;
    if (!word) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "message %zu holds %s, which the chat template takes apart; " RENDER_IT, i + 1, word,
                    exf_render_command(command, model));
}

exf_code exf_chat_render(const exf_chat_form *f, const exf_json *object, const char *field, exf_text *out, exf_err *err)
{
    messages all = {.model = f->model};
    int asked = 0, deepseek = f->kind == EXF_CHAT_DEEPSEEK_V2; /* asked: a user has spoken */
    exf_code rc;
    EXF_TRY(read_messages(&all, object, field, err));
    if (deepseek) exf_text_appendf(out, "%s", f->bos);
    for (size_t i = 0; i < all.n; i++) {
        const message *m = &all.message[i];
        int user = strcmp(m->role, "user") == 0, assistant = strcmp(m->role, "assistant") == 0;
        size_t skip = 0;
        if (f->kind == EXF_CHAT_QWEN3) EXF_TRY(check_qwen3(m, i, f->model, err));
        asked |= user;
        if (deepseek) {
            exf_text_appendf(out, "%s", user ? "User: " : assistant ? "Assistant: " : "");
        } else {
            /* an empty thought stands before the content, whose first newlines go */
            int thinks = f->kind == EXF_CHAT_QWEN3 && asked && i + 1 == all.n && assistant;
            while (thinks && skip < m->len && m->content[skip] == '\n') skip++;
            exf_text_appendf(out, "<|im_start|>%s\n%s", m->role, thinks ? "<think>\n\n</think>\n\n" : "");
        }
        exf_text_append(out, m->content + skip, m->len - skip);
        exf_text_appendf(out, "%s", !deepseek ? "<|im_end|>\n" : assistant ? f->eos : "\n\n");
    }
    rc = exf_text_end(out, err);
out:
    exf_mem_free(all.message);
    exf_text_free(&all.joined);
    return rc;
}
