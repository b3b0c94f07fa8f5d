/* writer_csv.c - a directory of tables for spreadsheets and data frames, RFC 4180:
 * comma, CR LF, one line of names; decimal points, nine significant digits, from
 * which a float comes back exactly.
 *
 *   pairs.csv    layer,source,target,count,S,loss,std_error,cosine,similarity
 *   experts.csv  layer,expert,count,norm,rms,contribution
 *   pools.csv    pool,layer,expert,member,target,scale
 *   provenance.json  the facts, a JSON object of strings
 *
 * A row per ordered pair of two experts, per expert, per expert and pool; layer is
 * the model's number.  A cell is empty where the tables know nothing: S to
 * similarity of a pair without evidence, a table that was not solved; so no mean
 * of a column is of sentinels.  Spreadsheets hold 1048576 rows. */
#include "export/writer_internal.h"

#include "base/err.h"
#include "base/names.h"

#include <inttypes.h>
#include <string.h>

enum { FLUSH = 1 << 16 };

typedef struct {
    exf_output_directory *directory;
    exf_text text;
} csv;

/* Writes what was added, if it is more than `above` bytes. */
static exf_code flush_text(csv *c, size_t above, exf_err *err)
{
    exf_code rc = exf_text_end(&c->text, err);
    if (rc != EXF_OK || c->text.len <= above) return rc;
    rc = exf_output_directory_write(c->directory, c->text.s, c->text.len, err);
    c->text.len = 0;
    return rc;
}

/* Adds the next cell, empty unless it is known. */
static void add_cell(csv *c, const float *table, size_t at, int known)
{
    if (known && table)
        exf_text_appendf(&c->text, ",%.9g", (double)table[at]);
    else
        exf_text_append(&c->text, ",", 1);
}

static exf_code write_pairs(csv *c, const exf_tables *t, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts;
    exf_code rc = EXF_OK;
    exf_text_appendf(&c->text, "layer,source,target,count,S,loss,std_error,cosine,similarity\r\n");
    for (size_t source = 0; source < (size_t)t->n_layers * e; source++) {
        EXF_TRY(exf_stop_check(err));
        for (size_t target = 0; target < e; target++) {
            size_t at = source * e + target;
            int known = t->loss[at] < EXF_LOSS_NEVER;
            if (target == source % e) continue;
            exf_text_appendf(&c->text, "%d,%zu,%zu,%" PRIu64, (int)t->layer_number[source / e], source % e, target, t->count[at]);
            add_cell(c, t->coeff, at, known);
            add_cell(c, t->loss, at, known);
            add_cell(c, t->std_error, at, known && t->std_error && t->std_error[at] < EXF_ERROR_UNKNOWN);
            add_cell(c, t->cosine, at, known);
            add_cell(c, t->similarity, at, known);
            exf_text_append(&c->text, "\r\n", 2);
            EXF_TRY(flush_text(c, FLUSH, err));
        }
    }
out:
    return rc;
}

/* Writes a row per expert.  A cold one has the median norms of others in the tables, and empty cells here. */
static exf_code write_experts(csv *c, const exf_tables *t, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts;
    exf_code rc = EXF_OK;
    exf_text_appendf(&c->text, "layer,expert,count,norm,rms,contribution\r\n");
    for (size_t at = 0; at < (size_t)t->n_layers * e; at++) {
        int known = t->expert_count[at] > 0;
        exf_text_appendf(&c->text, "%d,%zu,%" PRIu64, (int)t->layer_number[at / e], at % e, t->expert_count[at]);
        add_cell(c, t->expert_norms, at, known);
        add_cell(c, t->rms, at, known);
        add_cell(c, t->contribution, at, known);
        exf_text_append(&c->text, "\r\n", 2);
        EXF_TRY(flush_text(c, FLUSH, err));
    }
out:
    return rc;
}

static exf_code write_pools(csv *c, const exf_tables *t, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts;
    exf_code rc = EXF_OK;
    exf_text_appendf(&c->text, "pool,layer,expert,member,target,scale\r\n");
    for (int i = 0; i < t->n_pools; i++) {
        const exf_static_pool *p = &t->pool[i];
        int by_norm = strcmp(p->by, exf_pool_criteria[EXF_POOL_BY_NORM]) == 0;
        for (size_t at = 0; at < (size_t)t->n_layers * e; at++) {
            int is_member = 0;
            for (size_t k = 0; k < (size_t)p->size; k++) is_member |= (size_t)p->members[at / e * (size_t)p->size + k] == at % e;
            exf_text_appendf(&c->text, "%d%s%s,%d,%zu,%d,%d,%.9g\r\n", p->size, by_norm ? "" : ":", by_norm ? "" : p->by,
                             (int)t->layer_number[at / e], at % e, is_member, (int)p->target_ids[at], (double)p->target_scale[at]);
            EXF_TRY(flush_text(c, FLUSH, err));
        }
    }
out:
    return rc;
}

static exf_code write_csv(const exf_export *x, const char *path, int force, exf_err *err)
{
    static const struct {
        const char *name;
        exf_code (*write)(csv *c, const exf_tables *t, exf_err *err);
    } file[] = {{"pairs.csv", write_pairs}, {"experts.csv", write_experts}, {"pools.csv", write_pools}};
    csv c = {.directory = NULL};
    exf_code rc;
    EXF_TRY(exf_output_directory_begin(&c.directory, path, force, err));
    for (size_t i = 0; i < sizeof file / sizeof *file; i++) {
        EXF_TRY(exf_output_directory_file(c.directory, file[i].name, err));
        EXF_TRY(file[i].write(&c, x->tables, err));
        EXF_TRY(flush_text(&c, 0, err));
    }
    EXF_TRY(exf_table_facts_file(c.directory, x, err));
    rc = exf_output_directory_commit(c.directory, err);
    c.directory = NULL;
out:
    exf_output_directory_abort(c.directory);
    exf_text_free(&c.text);
    return rc;
}

const exf_writer exf_writer_csv = {
    .name = "csv",
    .file = "csv",
    .is_directory = 1,
    .about = "a folder with pairs.csv, experts.csv and pools.csv for spreadsheets",
    .load = {"csv", "CSV, with Python's own module",
             "import csv\n"
             "\n"
             "with open(\"csv/pairs.csv\", newline=\"\") as f:\n"
             "    pairs = [p for p in csv.DictReader(f) if p[\"S\"]]  # without evidence the cell is empty\n"
             "first = [p for p in pairs if p[\"layer\"] == pairs[0][\"layer\"] and p[\"source\"] == \"3\"]\n"
             "best = min(first, key=lambda p: float(p[\"loss\"]))\n"
             "print(f\"first layer: expert 3 is about {float(best['S']):.4f} times expert {best['target']}\")\n"},
    .write = write_csv,
};
