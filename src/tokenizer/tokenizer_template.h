/* tokenizer_template.h - the post-processor adds ids before and after a text's ids. */
#ifndef EXF_TOKENIZER_TOKENIZER_TEMPLATE_H
#define EXF_TOKENIZER_TOKENIZER_TEMPLATE_H
#include "format/json.h"
#include "tokenizer/token_ids.h"

typedef struct { exf_ids before, after; int seen; } exf_template;

/* part: the "post_processor" object, or NULL.  exf_template_free, also after a failure. */
exf_code exf_template_load(exf_template *t, const exf_json *part, const char *where, exf_err *err) EXF_CHECKED;
void exf_template_free(exf_template *t);
#endif
