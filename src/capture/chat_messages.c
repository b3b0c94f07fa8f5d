/* chat_messages.c - reads the messages of a conversation from a line of JSON, in the shapes that data sets have; see
 * chat_internal.h. */
#include "capture/chat_internal.h"

#include "base/mem.h"
#include "capture/members.h"

#include <stdio.h>
#include <string.h>

/* What each role is called in ShareGPT's turns, {"from": ..., "value": ...}, where others have {"role": ..., "content": ...}. */
static const struct { const char *from, *role; } roles[] = {
    {"system", "system"}, {"human", "user"}, {"user", "user"}, {"gpt", "assistant"}, {"assistant", "assistant"},
};

/* Refuses members that templates read beside role and content, unless they are null or empty. */
static exf_code refuse_members(const exf_json *object, const char *const *names, const char *where, exf_err *err)
{
    char command[EXF_SCRIPT_COMMAND];
    for (; *names; names++) {
        const exf_json *j = exf_json_get(object, *names);
        const char *text = exf_json_string(j, NULL);
        if (exf_json_type(j) == EXF_JSON_NULL || (text && !*text) || (exf_json_type(j) == EXF_JSON_ARRAY && !exf_json_size(j)))
            continue;
        return exf_fail(err, EXF_MODEL, "%s has \"%s\", which only the chat template itself knows to render; " EXF_RENDER_IT, where,
                        *names, exf_script_command(command, EXF_RENDER_SCRIPT));
    }
    return EXF_OK;
}

static exf_code add_message(exf_messages *m, const char *role, const char *content, size_t len, exf_err *err)
{
    exf_code rc = exf_mem_grow(&m->message, &m->cap, m->n + 1, sizeof *m->message, "messages of a conversation", err);
    if (rc == EXF_OK) m->message[m->n++] = (exf_message){role, content, len};
    return rc;
}

/* Finds what a turn's role is called here; NULL where it is none of those that all templates know. */
static const char *role_of(const char *word, int is_from)
{
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (strcmp(word, is_from ? roles[i].from : roles[i].role) == 0) return roles[i].role;
    return NULL;
}

static exf_code read_turn(exf_messages *m, const exf_json *j, exf_err *err)
{
    static const char *const others[] = {"tool_calls", "tool_call_id", "function_call", "reasoning_content", "reasoning",
                                         "thinking", NULL};
    int is_from = !exf_json_get(j, "role") && exf_json_get(j, "from");
    const char *role_name = is_from ? "from" : "role", *content_name = is_from ? "value" : "content";
    const exf_json *content = exf_json_get(j, content_name);
    const char *word = exf_json_string(exf_json_get(j, role_name), NULL), *role = word ? role_of(word, is_from) : NULL;
    char where[40], command[EXF_SCRIPT_COMMAND];
    size_t len;
    snprintf(where, sizeof where, "message %zu", m->n + 1);
    if (exf_json_type(j) != EXF_JSON_OBJECT)
        return exf_fail(err, EXF_MODEL, "%s is %s, expected an object with \"role\" and \"content\"", where, exf_json_type_name(j));
    if (!word) return exf_fail(err, EXF_MODEL, "%s has no \"%s\"", where, role_name);
    if (!role)
        return exf_fail(err, EXF_MODEL, "%s is of role \"%.40s\", expected %s; " EXF_RENDER_IT, where, word,
                        is_from ? "system, human or gpt" : "system, user or assistant",
                        exf_script_command(command, EXF_RENDER_SCRIPT));
    const char *text = exf_json_string(content, &len);
    if (!text)
        return exf_fail(err, EXF_MODEL, "%s: its \"%s\" is %s, expected a string; " EXF_RENDER_IT, where, content_name,
                        content ? exf_json_type_name(content) : "missing", exf_script_command(command, EXF_RENDER_SCRIPT));
    exf_code rc = refuse_members(j, others, where, err);
    return rc == EXF_OK ? add_message(m, role, text, len, err) : rc;
}

static exf_code read_turns(exf_messages *m, const exf_json *list, const char *name, exf_err *err)
{
    size_t n = exf_json_size(list);
    exf_code rc = EXF_OK;
    if (exf_json_type(list) != EXF_JSON_ARRAY || n == 0)
        return exf_fail(err, EXF_MODEL, "\"%s\" is %s, expected a list of messages", name, n ? exf_json_type_name(list) : "empty");
    for (size_t i = 0; rc == EXF_OK && i < n; i++) rc = read_turn(m, exf_json_at(list, i), err);
    return rc;
}

/* Reads an instruction, perhaps an input to it, and the answer. */
static exf_code read_strings(exf_messages *m, const exf_members *found, exf_err *err)
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

exf_code exf_messages_read(exf_messages *m, const exf_json *object, const char *field, exf_err *err)
{
    static const char *const others[] = {"tools", "functions", "documents", NULL};
    exf_members found;
    exf_code rc;
    (void)exf_members_find(&found, object, field);
    EXF_TRY(refuse_members(object, others, "the conversation", err));
    if (found.n > 1 && exf_json_string(found.part[0], NULL)) return read_strings(m, &found, err);
    for (size_t i = 0; i < found.n; i++) EXF_TRY(read_turns(m, found.part[i], found.name[i], err));
out:
    return rc;
}

void exf_messages_free(exf_messages *m)
{
    exf_mem_free(m->message);
    exf_text_free(&m->joined);
    *m = (exf_messages){0};
}
