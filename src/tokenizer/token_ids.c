/* token_ids.c - see token_ids.h. */
#include "tokenizer/token_ids.h"

#include "base/mem.h"

#include <string.h>

exf_code exf_ids_add(exf_ids *ids, const int32_t *id, size_t n, exf_err *err)
{
    exf_code rc = exf_mem_grow(&ids->id, &ids->cap, ids->n + n, sizeof *id, "token ids", err);
    if (rc != EXF_OK) return rc;
    if (n) memcpy(ids->id + ids->n, id, n * sizeof *id);
    ids->n += n;
    return EXF_OK;
}

void exf_ids_free(exf_ids *ids)
{
    exf_mem_free(ids->id);
    *ids = (exf_ids){0};
}
