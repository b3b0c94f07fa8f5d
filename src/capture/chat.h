/* chat.h - renders conversations as a model's chat template does, where the template is of a plain kind.
 *
 * Chat templates are programs (Jinja), which this does not run.  It knows some whose output, for messages of text without tools
 * and reasoning, follows a fixed form, and recognises a template by its code: plain loops by their squeezed text, released
 * templates by their SHA-256.  Any other template is refused (EXF_MODEL), naming scripts/render_chat.py, which runs it.
 *
 *   chatml        <|im_start|>ROLE\nCONTENT<|im_end|>\n for each message
 *   qwen3         the same; an assistant's message that is the last one, after a user's, begins with <think>\n\n</think>\n\n
 *   deepseek-v2   BOS, then "User: CONTENT\n\n", "Assistant: CONTENT" EOS, or "CONTENT\n\n" of the system
 *
 * A conversation is rendered whole, without the beginning of a further answer.  Markers in it are text: the tokenizer makes
 * special tokens of them, and of those that a user has written, as transformers does. */
#ifndef EXF_CAPTURE_CHAT_H
#define EXF_CAPTURE_CHAT_H
#include "base/text.h"
#include "format/json.h"
#include "tokenizer/tokenizer.h"

typedef enum { EXF_CHAT_NONE, EXF_CHAT_CHATML, EXF_CHAT_QWEN3, EXF_CHAT_DEEPSEEK_V2 } exf_chat_kind;

/* How a model renders.  Ownership: zero-initialise; exf_chat_form_free(). */
typedef struct {
    exf_chat_kind kind;
    char *bos, *eos; /* deepseek-v2; bos is "" where the tokenizer itself puts it before every text */
    const char *model; /* borrowed: the checkpoint's directory, which refusals name; NULL: not known */
} exf_chat_form;

/* Recognises the template of a checkpoint, whose directory is borrowed: chat_template.jinja, else chat_template in
 * tokenizer_config.json, of several the one that is named default.  field: the members that will be rendered, for the message where
 * there is no template. */
exf_code exf_chat_form_of_model(exf_chat_form *out, const char *dir, const char *field, const exf_tokenizer *t,
                                exf_err *err) EXF_CHECKED;
void exf_chat_form_free(exf_chat_form *f);
/* Recognises a template's text; EXF_CHAT_NONE: it is not known. */
exf_code exf_chat_recognise(exf_chat_kind *out, const char *text, exf_err *err) EXF_CHECKED;

/* Appends the conversation of an object, its member `field`.  EXF_MODEL naming message and member where it has roles, parts or
 * members that the form does not tell how to render. */
exf_code exf_chat_render(const exf_chat_form *f, const exf_json *object, const char *field, exf_text *out,
                         exf_err *err) EXF_CHECKED;
#endif
