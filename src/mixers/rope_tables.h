/* rope_tables.h - cosine and sine tables of a run, one pair per kind of rotation. */
#ifndef EXF_MIXERS_ROPE_TABLES_H
#define EXF_MIXERS_ROPE_TABLES_H
#include "base/err.h"
#include "kernels/backend.h"
#include "model/architecture.h"

typedef struct {
    float *cosine[EXF_ROPES], *sine[EXF_ROPES]; /* [max_tokens, dim / 2]; NULL where dim is 0 */
} exf_rope_tables; /* in a backend's memory */

exf_code exf_rope_tables_new(exf_rope_tables *p, const exf_backend *b, exf_queue *q, const exf_architecture *a, int max_tokens,
                           exf_err *err) EXF_CHECKED;
void exf_rope_tables_free(exf_rope_tables *p, const exf_backend *b);
#endif
