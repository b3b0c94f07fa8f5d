/* mixer.c - the table of mixers, and the tables of the rotations that mixers apply to heads; see mixer.h. */
#include "pass/mixer.h"

#include "base/mem.h"
#include "kernels/attention/attention.h"

#include <math.h>
#include <string.h>

/* ---- mixers ----------------------------------------------------------------------------------- */

static const exf_mixer *const mixers[EXF_MIXER_KINDS] = {
    [EXF_MIXER_ATTENTION] = &exf_mixer_attention,
    [EXF_MIXER_MLA] = &exf_mixer_mla,
    [EXF_MIXER_DELTANET] = &exf_mixer_deltanet,
    [EXF_MIXER_COMPRESSED] = &exf_mixer_compressed,
};

const exf_mixer *exf_mixer_of(exf_mixer_kind kind)
{
    return mixers[kind];
}

/* ---- rope tables ------------------------------------------------------------------------------- */

static exf_code make_table(exf_rope_tables *p, int kind, const exf_backend *b, exf_queue *q, const exf_rope_spec *s, int max_tokens,
                           exf_err *err)
{
    exf_code rc;
    size_t half = (size_t)s->dim / 2, n = half * (size_t)max_tokens;
    float *inv_freq = NULL, *table = NULL; /* table: cosines, then sines */
    exf_yarn yarn = {s->factor, s->beta_fast, s->beta_slow, s->original_length, s->truncate};
    EXF_TRY(exf_mem_new(&inv_freq, half, sizeof(float), "RoPE frequencies", err));
    EXF_TRY(exf_mem_new(&table, 2 * n, sizeof(float), "RoPE table", err));
    EXF_TRY(b->alloc(&p->cosine[kind], n, sizeof(float), "RoPE table", err));
    EXF_TRY(b->alloc(&p->sine[kind], n, sizeof(float), "RoPE table", err));
    if (s->yarn)
        exf_rope_yarn_frequencies(inv_freq, s->dim, s->theta, &yarn);
    else
        exf_rope_frequencies(inv_freq, s->dim, s->theta);
    for (size_t i = (size_t)s->turned / 2; s->turned && i < half; i++) inv_freq[i] = 0;
    exf_rope_table(table, table + n, inv_freq, s->dim, max_tokens, s->amplitude > 0 ? s->amplitude : 1);
    b->upload(q, p->cosine[kind], table, n * sizeof(float));
    b->upload(q, p->sine[kind], table + n, n * sizeof(float));
    EXF_TRY(b->finish(q, err));
out:
    exf_mem_free(inv_freq);
    exf_mem_free(table);
    return rc;
}

exf_code exf_rope_tables_new(exf_rope_tables *p, const exf_backend *b, exf_queue *q, const exf_architecture *a, int max_tokens,
                             exf_err *err)
{
    const exf_mla_spec *s = &a->mla;
    size_t n = (size_t)max_tokens;
    float *scale = NULL;
    exf_code rc = EXF_OK;
    memset(p, 0, sizeof *p);
    for (int i = 0; i < EXF_ROPES; i++)
        if (a->rope[i].dim) EXF_TRY(make_table(p, i, b, q, &a->rope[i], max_tokens, err));
    if (s->query_beta == 0 || max_tokens <= s->query_length) return EXF_OK; /* earlier queries have the factor 1 */
    EXF_TRY(exf_mem_new(&scale, n, sizeof(float), "factors of queries", err));
    EXF_TRY(b->alloc(&p->query_scale, n, sizeof(float), "factors of queries", err));
    for (size_t t = 0; t < n; t++) scale[t] = (float)(1 + s->query_beta * log(1 + floor((double)t / s->query_length)));
    b->upload(q, p->query_scale, scale, n * sizeof(float));
    EXF_TRY(b->finish(q, err));
out:
    exf_mem_free(scale);
    return rc;
}

void exf_rope_tables_free(exf_rope_tables *p, const exf_backend *b)
{
    for (int i = 0; b && i < EXF_ROPES; i++) {
        b->free(p->cosine[i]);
        b->free(p->sine[i]);
    }
    if (b) b->free(p->query_scale);
    memset(p, 0, sizeof *p);
}
