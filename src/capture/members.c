/* members.c - names of members in a line of JSON, what they hold, and how messages list them; see members.h. */
#include "capture/members.h"

#include "base/file.h"

#include <stdio.h>
#include <string.h>

size_t exf_members_find(exf_members *m, const exf_json *object, const char *field)
{
    const exf_json *whole = exf_json_get(object, field);
    size_t found = 0;
    m->n = 0;
    for (const char *at = field; at && m->n < EXF_MOST_MEMBERS;) {
        const char *plus = whole ? NULL : strchr(at, '+');
        snprintf(m->name[m->n], sizeof m->name[0], "%.*s", plus ? (int)(plus - at) : (int)strlen(at), at);
        m->part[m->n] = whole ? whole : exf_json_get(object, m->name[m->n]);
        found += m->part[m->n++] != NULL;
        at = plus ? plus + 1 : NULL;
    }
    return found;
}

/* ---- what a member holds ------------------------------------------------------------------------------------- */

int exf_is_list_of_objects(const exf_json *member)
{
    return exf_json_type(member) == EXF_JSON_ARRAY &&
           (!exf_json_size(member) || exf_json_type(exf_json_at(member, 0)) == EXF_JSON_OBJECT);
}

int exf_is_list_of_ids(const exf_json *member)
{
    return exf_json_type(member) == EXF_JSON_ARRAY && exf_json_size(member) &&
           exf_json_type(exf_json_at(member, 0)) == EXF_JSON_INT;
}

int exf_is_conversation(const exf_json *member)
{
    const exf_json *turn = exf_json_type(member) == EXF_JSON_ARRAY ? exf_json_at(member, 0) : NULL;
    if (!turn || exf_json_type(turn) != EXF_JSON_OBJECT) return 0;
    return exf_json_get(turn, exf_json_get(turn, "role") ? "content" : "from") != NULL;
}

static int is_text(const exf_json *member)
{
    return exf_json_string(member, NULL) != NULL;
}

/* ---- what a line is ------------------------------------------------------------------------------------------- */

/* In this order; every member of `needs` must hold what `holds` says. */
static const struct { const char *needs, *optional, *field; int (*holds)(const exf_json *); exf_line_kind kind; } shapes[] = {
    {"text", NULL, "text", is_text, EXF_LINE_TEXT},
    {"messages", NULL, "messages", exf_is_list_of_objects, EXF_LINE_CHAT},
    {"conversations", NULL, "conversations", exf_is_conversation, EXF_LINE_CHAT},
    {"conversation", NULL, "conversation", exf_is_conversation, EXF_LINE_CHAT},
    {"prompt+completion", NULL, "prompt+completion", is_text, EXF_LINE_TEXT},
    {"prompt+completion", NULL, "prompt+completion", exf_is_conversation, EXF_LINE_CHAT},
    {"instruction+output", "input", "instruction+input+output", is_text, EXF_LINE_CHAT},
    {"instruction+output", NULL, "instruction+output", is_text, EXF_LINE_CHAT},
    {"input_ids", NULL, "input_ids", exf_is_list_of_ids, EXF_LINE_IDS},
};

static int all_hold(const exf_json *object, const char *field, int (*holds)(const exf_json *))
{
    exf_members m;
    (void)exf_members_find(&m, object, field);
    for (size_t i = 0; i < m.n; i++)
        if (!holds(m.part[i])) return 0;
    return 1;
}

exf_line_kind exf_line_kind_of(const exf_json *object, const char **field)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (!all_hold(object, shapes[i].needs, shapes[i].holds)) continue;
        if (shapes[i].optional && !exf_json_get(object, shapes[i].optional)) continue;
        *field = shapes[i].field;
        return shapes[i].kind;
    }
    *field = "text";
    return EXF_LINE_UNKNOWN;
}

exf_line_kind exf_line_kind_of_field(const exf_json *object, const char *field)
{
    return all_hold(object, field, is_text)                  ? EXF_LINE_TEXT
           : all_hold(object, field, exf_is_list_of_objects) ? EXF_LINE_CHAT
           : all_hold(object, field, exf_is_list_of_ids)     ? EXF_LINE_IDS
                                                             : EXF_LINE_UNKNOWN;
}

/* ---- messages ------------------------------------------------------------------------------------------------- */

enum { MOST_NAMES = 12 };

static void append_name(exf_text *out, size_t i, const char *name)
{
    if (i < MOST_NAMES) exf_text_appendf(out, "%s\"%.60s\"", i ? ", " : "", name);
}

static void append_rest(exf_text *out, size_t n)
{
    if (n == 0) exf_text_appendf(out, "none");
    if (n > MOST_NAMES) exf_text_appendf(out, " and %zu more", n - MOST_NAMES);
}

void exf_member_names(const exf_json *object, exf_text *out)
{
    size_t n = 0;
    for (void *it = exf_json_first(object); it; it = exf_json_next(object, it)) append_name(out, n++, exf_json_key(it));
    append_rest(out, n);
}

void exf_tensor_names(const exf_st_file *f, exf_text *out)
{
    size_t n = f->n_tensors;
    for (size_t i = 0; i < n; i++) append_name(out, i, f->tensor[i].view.name);
    append_rest(out, n);
}

const char *exf_render_command(char buf[EXF_RENDER_COMMAND], const char *model)
{
    char script[EXF_SCRIPT_COMMAND];
    exf_text directory = {0};
    if (model) exf_text_append_word(&directory, model);
    snprintf(buf, EXF_RENDER_COMMAND, "%s %s", exf_script_command(script, "render_chat.py"),
             directory.s && !directory.refused ? directory.s : "MODEL");
    exf_text_free(&directory);
    return buf;
}

exf_code exf_refuse_conversation(const exf_json *object, const char *place, const char *path, const char *model, exf_err *err)
{
    char command[EXF_RENDER_COMMAND];
    for (void *it = exf_json_first(object); it; it = exf_json_next(object, it)) {
        const char *name = exf_json_key(it);
        if (!exf_is_conversation(exf_json_value(it))) continue;
        int is_usual = strcmp(name, "messages") == 0;
        return exf_fail(err, EXF_MODEL,
                        "%s: \"%s\" is a conversation, which becomes text by the model's own chat template: %s "
                        "%s OUT.jsonl%s%s; then give OUT.jsonl",
                        place, name, exf_render_command(command, model), path, is_usual ? "" : " --messages ",
                        is_usual ? "" : name);
    }
    return EXF_OK;
}
