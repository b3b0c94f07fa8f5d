/* token_ids.h - a list of token ids that grows. */
#ifndef EXF_TOKENIZER_TOKEN_IDS_H
#define EXF_TOKENIZER_TOKEN_IDS_H
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct { int32_t *id; size_t n, cap; } exf_ids; /* zero-initialise; exf_ids_free */

exf_code exf_ids_add(exf_ids *ids, const int32_t *id, size_t n, exf_err *err) EXF_CHECKED;
void exf_ids_free(exf_ids *ids);
#endif
