/* figure_data.c - the numbers behind a figure, as files; see figure.h. */
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "format/npy.h"
#include "inspect/figure.h"

#include <inttypes.h>
#include <math.h>

enum { FLUSH = 1 << 16 };

static exf_code add_value(exf_text *line, double value, int known, exf_err *err)
{
    return known ? exf_text_addf(line, err, "%.9g\n", value) : exf_text_add(line, "\n", 1, err);
}

static exf_code add_expert(const exf_inspection *s, const float *value, size_t at, exf_text *line, exf_err *err)
{
    size_t e = (size_t)s->shape.n_experts;
    exf_code rc = exf_text_addf(line, err, "%d,%zu,%" PRIu64 ",", (int)s->layer_number[at / e], at % e, s->expert_count[at]);
    return rc != EXF_OK ? rc : add_value(line, (double)value[at], !isnan(value[at]), err);
}

static exf_code add_pair(const exf_inspection *s, const float *value, size_t at, exf_text *line, exf_err *err)
{
    size_t e = (size_t)s->shape.n_experts, source = at / e % e, target = at % e;
    if (source == target) return EXF_OK;
    exf_code rc =
        exf_text_addf(line, err, "%d,%zu,%zu,%" PRIu64 ",", (int)s->layer_number[at / e / e], source, target, s->count[at]);
    return rc != EXF_OK ? rc : add_value(line, (double)value[at], exf_inspection_observed(s, at), err);
}

static exf_code flush(exf_output_file *f, exf_text *line, exf_err *err)
{
    exf_code rc = exf_output_file_write(f, line->s, line->len, err);
    line->len = 0;
    return rc;
}

exf_code exf_figure_csv(const exf_figure *f, const exf_inspection *s, const char *target, int force, exf_err *err)
{
    size_t e = (size_t)s->shape.n_experts, n = (size_t)s->n_layers * e * (f->is_bars ? 1 : e);
    const float *value = exf_figure_values(f, s);
    exf_output_file *file = NULL;
    exf_text line = {0};
    exf_code rc;
    EXF_TRY(exf_output_file_begin(&file, target, force, err));
    EXF_TRY(exf_text_addf(&line, err, f->is_bars ? "layer,expert,tokens,norm\n" : "layer,source,target,tokens,%s\n", f->name));
    for (size_t i = 0; i < n; i++) {
        EXF_TRY(f->is_bars ? add_expert(s, value, i, &line, err) : add_pair(s, value, i, &line, err));
        if (line.len > FLUSH) EXF_TRY(flush(file, &line, err));
    }
    EXF_TRY(flush(file, &line, err));
    rc = exf_output_file_commit(file, err);
    file = NULL;
out:
    exf_output_file_abort(file);
    exf_text_free(&line);
    return rc;
}

exf_code exf_figure_npy(const exf_figure *f, const exf_inspection *s, const char *target, int force, exf_err *err)
{
    int64_t l = s->n_layers, e = s->shape.n_experts;
    size_t n = (size_t)l * (size_t)e * (f->is_bars ? 1 : (size_t)e);
    const float *value = exf_figure_values(f, s);
    float *seen = NULL;
    exf_code rc = exf_mem_new(&seen, n, sizeof *seen, "numbers of a figure", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < n; i++) {
        int known = f->is_bars || exf_inspection_observed(s, i) || (i / (size_t)e % (size_t)e == i % (size_t)e && !f->hide_self);
        seen[i] = known ? value[i] : NAN;
    }
    exf_tensor t = {.name = f->name, .dtype = EXF_DT_F32, .rank = f->is_bars ? 2 : 3, .shape = {l, e, e}, .data = seen};
    rc = exf_npy_write(target, force, &t, err);
    exf_mem_free(seen);
    return rc;
}
