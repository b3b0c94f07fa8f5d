/* tokenizer_split_internal.h - what cutting text by the steps of a pre-tokenizer (tokenizer_split.c) and loading them
 * (tokenizer_split_load.c) share; the only header that includes PCRE2's. */
#ifndef EXF_TOKENIZER_SPLIT_INTERNAL_H
#define EXF_TOKENIZER_SPLIT_INTERNAL_H
#include "tokenizer/tokenizer_internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { EXF_SPLIT_MOST_STEPS = 32 };

typedef struct {
    pcre2_code *code, *counting; /* the same pattern, without and with a callout in front of every item */
    int only_matches;
} exf_split_step;

struct exf_splitter {
    pcre2_compile_context *context;
    exf_alphabet *alphabet;
    int closed; /* the alphabet knows all patterns; before, the steps are only read */
    exf_split_step step[EXF_SPLIT_MOST_STEPS];
    size_t n;
    int byte_level;
};

/* A context whose memory is that of base/mem.h; NULL: there is none. */
pcre2_general_context *exf_split_memory(void);
exf_code exf_split_no_memory(exf_err *err) EXF_CHECKED;
#endif
