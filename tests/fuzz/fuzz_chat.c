/* fuzz_chat.c - libFuzzer target: the first line of any text is read as a chat template, the rest as a line of JSON, whose
 * conversation, by several fields, is rendered in every form or refused.
 *   make fuzz FUZZ=chat SECONDS=60 */
#include "capture/chat.h"
#include "capture/members.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void must(int holds)
{
    if (!holds) abort();
}

static void render(const exf_json *j, const char *field)
{
    char bos[] = "<B>", eos[] = "<E>";
    for (int kind = EXF_CHAT_CHATML; kind <= EXF_CHAT_DEEPSEEK_V2; kind++) {
        exf_chat_form f = {.kind = (exf_chat_kind)kind, .bos = bos, .eos = eos};
        exf_err err = {EXF_OK, ""};
        exf_text out = {0};
        exf_code rc = exf_chat_render(&f, j, field, &out, &err);
        must(rc == EXF_OK ? out.len > 0 : rc == EXF_MODEL && err.msg[0]);
        exf_text_free(&out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    exf_err err = {EXF_OK, ""};
    exf_chat_kind kind;
    exf_json *j = NULL;
    char *text = malloc(size + 1);
    must(text != NULL);
    if (size) memcpy(text, bytes, size);
    text[size] = 0;
    char *line = memchr(text, '\n', size), *rest = line ? line + 1 : text + size;
    if (line) *line = 0;
    must(exf_chat_recognise(&kind, text, &err) == EXF_OK && kind <= EXF_CHAT_DEEPSEEK_V2);
    if (exf_json_parse(&j, rest, (size_t)(text + size - rest), "line", &err) == EXF_OK) {
        static const char *const fields[] = {"messages", "prompt+completion", "instruction+input+output"};
        const char *own;
        for (int i = 0; i < 3; i++) render(j, fields[i]);
        must(exf_line_kind_of(j, &own) <= EXF_LINE_UNKNOWN);
        if (exf_line_kind_of(j, &own) == EXF_LINE_CHAT) render(j, own);
    }
    exf_json_free(j);
    free(text);
    return 0;
}
