/* inspect_pictures.c - exfold-inspect heatmap: sheets of all layers, and their numbers. */
#include "artifact/provenance.h"
#include "cli/inspect.h"
#include "recipe/run_directory.h"

#include "artifact/data.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "inspect/figure.h"
#include "inspect/report.h"

#include <string.h>

/* ---- heatmap ------------------------------------------------------------------------------- */

enum { FIGURES_MAX = 16 };

typedef struct {
    const exf_figure *figure[FIGURES_MAX];
    size_t n;
    int by_name; /* more than one: the figure's name goes into the file's */
    exf_figure_ends ends;
} choice;

static exf_code choose_figures(choice *c, const exf_inspection *s, const exf_recipe *r, exf_err *err)
{
    const exf_figure *f;
    c->by_name = r->what.n > 1 || (r->what.n && strcmp(r->what.item[0], "all") == 0);
    if (r->what.n == 1 && c->by_name) {
        for (size_t i = 0; (f = exf_figure_at(i)); i++) {
            if (exf_figure_values(f, s))
                c->figure[c->n++] = f;
            else
                exf_log_info("%s is left out: it is drawn from %s", f->name, f->needs);
        }
    } else {
        for (size_t i = 0; i < r->what.n; i++) {
            const char *name = r->what.item[i];
            f = exf_figure_find(name);
            if (!f)
                return exf_fail(err, EXF_USAGE, "--what: \"%s\" is none of norms, similarity, aligned, scalar, loss, all", name);
            if (!exf_figure_values(f, s))
                return exf_fail(err, EXF_MODEL, "%s: %s is drawn from %s, this holds %s", r->inputs[0], name, f->needs,
                                s->kind->kind);
            for (size_t k = 0; k < c->n; k++)
                if (c->figure[k] == f) return exf_fail(err, EXF_USAGE, "--what: %s stands twice", name);
            c->figure[c->n++] = f;
        }
    }
    return c->n ? EXF_OK : exf_fail(err, EXF_USAGE, "--what: names no figure");
}

/* Reads the ends of the colours from --range. */
static exf_code read_ends(choice *c, const exf_recipe *r, exf_err *err)
{
    const exf_text_list *range = &r->range;
    exf_figure_ends *e = &c->ends;
    if (range->n == 0) return EXF_OK;
    if (c->n == 1 && c->figure[0]->is_bars)
        return exf_fail(err, EXF_USAGE, "--range: %s are bars, which have no colours", c->figure[0]->name);
    if (range->n == 1 && strcmp(range->item[0], "auto") == 0) {
        e->from = EXF_ENDS_DATA;
        return EXF_OK;
    }
    if (range->n != 2 || !exf_parse_f64(range->item[0], &e->low) || !exf_parse_f64(range->item[1], &e->high))
        return exf_fail(err, EXF_USAGE, "--range: expected auto or two numbers MIN,MAX");
    if (!(e->low < e->high)) return exf_fail(err, EXF_USAGE, "--range: %s is not below %s", range->item[0], range->item[1]);
    if (c->n > 1)
        return exf_fail(err, EXF_USAGE, "--range: two numbers are for one figure, these are %zu; name one with --what", c->n);
    e->from = EXF_ENDS_GIVEN;
    return EXF_OK;
}

static exf_code write_picture(const choice *c, const exf_figure *f, const exf_inspection *s, const char *path, int force,
                              exf_err *err)
{
    exf_drawing *d = NULL;
    exf_code rc = exf_drawing_open(&d, path, force, err);
    if (rc == EXF_OK && s->part) exf_drawing_note(d, EXF_PART_FACT, s->part);
    if (rc == EXF_OK) rc = exf_figure_draw(f, s, &c->ends, d, err);
    if (rc == EXF_OK) return exf_drawing_close(d, err);
    exf_drawing_abort(d);
    return rc;
}

/* A figure's files: the picture, which ends as --output does, and its numbers. */
static const struct {
    const char *ending;
    exf_code (*write)(const exf_figure *f, const exf_inspection *s, const char *path, int force, exf_err *err);
} files[] = {{NULL, NULL}, {".csv", exf_figure_csv}, {".npy", exf_figure_npy}};

/* Writes each file of each figure: out-loss.svg, out-loss.csv, ..., or out.svg, out.csv for a figure alone.  write 0: only looks
 * whether it may be written. */
static exf_code write_files(const choice *c, const exf_inspection *s, const exf_recipe *r, int write, exf_jw *w, exf_err *err)
{
    size_t stem = strlen(r->output_file) - EXF_PICTURE_SUFFIX_LEN;
    exf_text path = {0};
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < c->n; i++)
        for (size_t k = 0; k < (r->data ? 3 : 1); k++) {
            const exf_figure *f = c->figure[i];
            path.len = 0;
            exf_text_append(&path, r->output_file, stem);
            exf_text_appendf(&path, "%s%s%s", c->by_name ? "-" : "", c->by_name ? f->name : "",
                             files[k].ending ? files[k].ending : r->output_file + stem);
            EXF_TRY(exf_text_end(&path, err));
            if (!write) {
                EXF_TRY(exf_output_check(path.s, r->force, err));
                continue;
            }
            EXF_TRY(files[k].write ? files[k].write(f, s, path.s, r->force, err) : write_picture(c, f, s, path.s, r->force, err));
            EXF_TRY(exf_tell_output(w, path.s, err));
        }
out:
    exf_text_free(&path);
    return rc;
}

exf_code exf_inspect_heatmap(exf_recipe *r, exf_err *err)
{
    exf_inspection s = {0};
    exf_jw w = {0};
    choice c = {.n = 0};
    exf_run_directory dir = {0};
    exf_code rc;
    if (!r->output_file || !exf_picture_is_named(r->output_file))
        return exf_fail(err, EXF_USAGE, "--output is %s, expected a name that ends in %s",
                        r->output_file ? r->output_file : "missing", EXF_PICTURE_SUFFIXES);
    EXF_TRY(exf_run_directory_of_file(&dir, r->output_file, err));
    EXF_TRY(exf_inspection_read(&s, r->inputs[0], r->n_inputs > 1 ? r->inputs[1] : NULL, err));
    EXF_TRY(choose_figures(&c, &s, r, err));
    EXF_TRY(read_ends(&c, r, err));
    EXF_TRY(exf_inspection_select(&s, r->layers, err));
    EXF_TRY(write_files(&c, &s, r, 0, NULL, err));
    exf_jw_open(&w, NULL, '{');
    exf_jw_open(&w, "files", '[');
    EXF_TRY(write_files(&c, &s, r, 1, r->json ? &w : NULL, err));
    exf_jw_close(&w);
    exf_jw_close(&w);
    if (r->json) EXF_TRY(exf_print_json(&w, err));
out:
    exf_jw_free(&w);
    exf_inspection_free(&s);
    exf_run_directory_close(&dir, 0);
    return rc;
}

/* ---- report --------------------------------------------------------------------------------- */

exf_code exf_inspect_report(exf_recipe *r, exf_err *err)
{
    exf_inspection s = {0};
    exf_jw w = {0};
    exf_run_directory dir = {0};
    char *beside = NULL, digest[EXF_SHA256_HEX];
    const char *name = strrchr(r->inputs[0], '/') ? strrchr(r->inputs[0], '/') + 1 : r->inputs[0];
    exf_code rc;
    if (!r->output_file || !exf_ends_with(r->output_file, ".html"))
        return exf_fail(err, EXF_USAGE, "--output is %s, expected a name that ends in .html",
                        r->output_file ? r->output_file : "missing");
    EXF_TRY(exf_run_directory_of_file(&dir, r->output_file, err));
    EXF_TRY(exf_output_check(r->output_file, r->force, err));
    EXF_TRY(exf_inspection_read(&s, r->inputs[0], r->n_inputs > 1 ? r->inputs[1] : NULL, err));
    if (!s.coeff) {
        rc = exf_fail(err, EXF_MODEL, "%s: holds %s, a report is made of tables", r->inputs[0], s.kind->kind);
        goto out;
    }
    EXF_TRY(exf_artifact_digest(r->inputs[0], &exf_artifact_tables, digest, err));
    EXF_TRY(exf_derived_check_validation(r->inputs[0], digest, err));
    EXF_TRY(exf_provenance_add(&s.provenance, err, EXF_MADE_FROM, "%s", digest));
    EXF_TRY(exf_path_dir(&beside, r->inputs[0], err));
    EXF_TRY(exf_report_write(&s, name, beside, r->output_file, r->force, err));
    exf_jw_open(&w, NULL, '{');
    exf_jw_open(&w, "files", '[');
    EXF_TRY(exf_tell_output(r->json ? &w : NULL, r->output_file, err));
    exf_jw_close(&w);
    exf_jw_close(&w);
    if (r->json) rc = exf_print_json(&w, err);
out:
    exf_jw_free(&w);
    exf_mem_free(beside);
    exf_inspection_free(&s);
    exf_run_directory_close(&dir, 0);
    return rc;
}
