/* rope_tables.h - exf_rope_tables holds the cosines and sines of all positions of a run, for
 * each kind of rotation, in a backend's memory. */
#ifndef EXF_PASS_ROPE_TABLES_H
#define EXF_PASS_ROPE_TABLES_H
#include "base/err.h"
#include "kernels/backend.h"
#include "model/architecture.h"

typedef struct {
    float *cosine[EXF_ROPES], *sine[EXF_ROPES]; /* [max_tokens, dim / 2]; NULL where dim is 0 */
} exf_rope_tables;

exf_code exf_rope_tables_new(exf_rope_tables *p, const exf_backend *b, exf_queue *q, const exf_architecture *a, int max_tokens,
                           exf_err *err) EXF_CHECKED;
void exf_rope_tables_free(exf_rope_tables *p, const exf_backend *b);
#endif
