/* chat_internal.h - the messages of a conversation, which chat_messages.c reads from a line and chat.c renders. */
#ifndef EXF_CAPTURE_CHAT_INTERNAL_H
#define EXF_CAPTURE_CHAT_INTERNAL_H
#include "base/file.h"
#include "capture/chat.h"

/* Ends a refusal: what to do where only the template itself knows. */
#define EXF_RENDER_IT "render the conversations with: %s MODEL IN.jsonl OUT.jsonl"
#define EXF_RENDER_SCRIPT "render_chat.py"

typedef struct {
    const char *role, *content; /* role: "system", "user" or "assistant" */
    size_t len;                 /* of content */
} exf_message;

/* Zero-initialise; exf_messages_free().  The messages borrow from the line, or from `joined`. */
typedef struct {
    exf_message *message;
    size_t n, cap;
    exf_text joined;
} exf_messages;

/* Reads the conversation of an object: a list of turns, lists of turns one after another (prompt+completion), or strings, of which
 * the last is the assistant's and those before, but for empty ones, are the user's, a line each (instruction+input+output). */
exf_code exf_messages_read(exf_messages *m, const exf_json *object, const char *field, exf_err *err) EXF_CHECKED;
void exf_messages_free(exf_messages *m);
#endif
