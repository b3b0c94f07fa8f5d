/* members.h - finds what a source names in a line of JSON: a text, turns of a conversation, token ids.
 *
 * A field is the name of one member, or several joined by "+": "prompt+completion".  A member that is called so wins. */
#ifndef EXF_CAPTURE_MEMBERS_H
#define EXF_CAPTURE_MEMBERS_H
#include "base/text.h"
#include "format/json.h"
#include "format/safetensors.h"

enum { EXF_MOST_MEMBERS = 8 };

/* The members of a field, borrowed from the line; NULL where the line has none of that name. */
typedef struct {
    size_t n;
    const exf_json *part[EXF_MOST_MEMBERS];
    char name[EXF_MOST_MEMBERS][64]; /* cut where longer */
} exf_members;

/* Returns the number of members that are there. */
size_t exf_members_find(exf_members *m, const exf_json *object, const char *field);

/* Return 1 for a list of turns, {"role": ..., "content": ...} or {"from": ..., "value": ...}; for an empty list, or one of objects;
 * for a list of integers. */
int exf_is_conversation(const exf_json *member);
int exf_is_list_of_objects(const exf_json *member);
int exf_is_list_of_ids(const exf_json *member);

/* What kind of document a line is, for which nobody has named a field. */
typedef enum { EXF_LINE_TEXT, EXF_LINE_CHAT, EXF_LINE_IDS, EXF_LINE_UNKNOWN } exf_line_kind;
/* Looks for the members by which data sets are known, in the order of its table: text; messages; ShareGPT's conversations; prompt
 * and completion; Alpaca's instruction, input, output; input_ids.  *field: the field that has the document, a constant. */
exf_line_kind exf_line_kind_of(const exf_json *object, const char **field);
/* The same of a field that a user named; UNKNOWN where it is none of the kinds. */
exf_line_kind exf_line_kind_of_field(const exf_json *object, const char *field);

/* Writes the command that renders conversations by the chat template of the model in a directory, for messages, which add the names
 * of files; model NULL: none is known, and the word MODEL stands there.  Returns buf. */
enum { EXF_RENDER_COMMAND = 1024 };
const char *exf_render_command(char buf[EXF_RENDER_COMMAND], const char *model);
/* EXF_MODEL, beginning with `place`, if a member of the line of the file is a conversation: names that command. */
exf_code exf_refuse_conversation(const exf_json *object, const char *place, const char *path, const char *model,
                                 exf_err *err) EXF_CHECKED;

/* Append, for messages, the names that a source has where a wanted one is missing, in the file's order and quoted:
 * "\"a\", \"b\""; of more than 12 the first 12 and how many more there are; "none" of an empty list. */
void exf_member_names(const exf_json *object, exf_text *out);
void exf_tensor_names(const exf_st_file *f, exf_text *out);
#endif
