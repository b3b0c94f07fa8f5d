/* writer_reap_checkpoint.c - reap-checkpoint/: the model without the experts of least REAP score, as a checkpoint that is
 * loaded like the release.
 *
 * Every shard of the release has its counterpart of the same name, with the tensors that are left of it (pruned.c):
 * kept experts are numbered anew in their old order, routers and their biases have the kept rows, all else is the same bytes
 * but for layers for multi-token prediction, which are left out.  A new index, config.json with the new number of experts, the
 * release's other small files of text, kept_experts.jsonl: {"<layer>": [the old numbers]}, a line for each layer, and
 * provenance.json, the facts of the tables. */
#include "export/writer_internal.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "format/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 4 << 20, SMALL_FILE = 256 << 20 }; /* bytes */

/* ---- which experts ---------------------------------------------------------------------- */

static int by_number(const void *a, const void *b)
{
    return *(const int32_t *)a < *(const int32_t *)b ? -1 : *(const int32_t *)a > *(const int32_t *)b;
}

/* Makes *kept [n_layers of the model, keep], the experts of each layer in ascending order; zeros for dense layers. */
static exf_code choose_kept(int32_t **kept, const exf_export *x, exf_err *err)
{
    const exf_tables *t = x->tables;
    size_t keep = (size_t)x->keep, e = (size_t)t->shape.n_experts;
    int32_t *order = NULL;
    exf_code rc;
    EXF_TRY(exf_expert_order_make(&order, x, err));
    EXF_TRY(exf_mem_new(kept, (size_t)x->model->arch.n_layers * keep, sizeof **kept, "kept experts", err));
    for (size_t l = 0; l < (size_t)t->n_layers; l++) {
        int32_t *of_layer = *kept + (size_t)t->layer_number[l] * keep;
        memcpy(of_layer, order + l * e, keep * sizeof *order);
        qsort(of_layer, keep, sizeof *of_layer, by_number);
    }
out:
    exf_mem_free(order);
    return rc;
}

/* Checks that a router that chooses groups first is left with groups of equal size. */
static exf_code check_groups(const exf_export_settings *s, exf_err *err)
{
    const exf_router_spec *r = &s->arch->router;
    int64_t groups = r->n_groups, ranks = s->ranks ? s->ranks : 1;
    if (groups <= 1) return EXF_OK;
    if (ranks % groups)
        return exf_fail(err, EXF_MODEL,
                        "the router chooses among %" PRId64 " groups of experts, which must keep equally many; set "
                        "export.expert_parallel to %" PRId64 ", or a multiple",
                        groups, groups);
    if (s->keep / groups < 2 || s->keep / groups * r->top_groups < s->arch->top_k)
        return exf_fail(err, EXF_MODEL, "export.experts is %" PRId64 ": %" PRId64 " in each of %" PRId64 " groups are too few",
                        s->keep, s->keep / groups, groups);
    return EXF_OK;
}

static exf_code check_settings(const exf_export_settings *s, exf_err *err)
{
    exf_code rc = exf_expert_order_asks_keep(s, err);
    for (int l = 0; rc == EXF_OK && s->arch && l < s->arch->n_layers; l++)
        if (s->arch->traits[l] & EXF_T_HASHED)
            return exf_fail(err, EXF_MODEL, "layer %d chooses experts by token id; its table names all %d of them", l,
                            s->arch->n_experts);
    return rc == EXF_OK && s->arch ? check_groups(s, err) : rc;
}

static exf_code check_export(const exf_export *x, exf_err *err)
{
    exf_code rc;
    const exf_architecture *a = &x->model->arch;
    int n_moe = 0;
    EXF_TRY(exf_expert_order_allows(x, err));
    for (int l = 0; l < a->n_layers; l++) n_moe += a->is_moe[l];
    if (n_moe != x->tables->n_layers)
        return exf_fail(err, EXF_MODEL, "the tables hold %d of %d MoE layers; a pruned model needs the scores of all",
                        x->tables->n_layers, n_moe);
out:
    return rc;
}

/* ---- writing -------------------------------------------------------------------------------- */

typedef struct {
    const exf_export *x;
    exf_pruned_tensors tensors;
    exf_output_directory *dir;
    char *buffer; /* CHUNK */
} writing;

/* Copies bytes [begin, begin + n) of the stored tensor to the file that was started last. */
static exf_code copy_bytes(const writing *w, const exf_stored_tensor *s, uint64_t begin, uint64_t n, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (uint64_t done = 0; rc == EXF_OK && done < n;) {
        size_t some = n - done < CHUNK ? (size_t)(n - done) : CHUNK;
        EXF_TRY(exf_st_read(s->file, s->tensor, begin + done, w->buffer, some, err));
        rc = exf_output_directory_write(w->dir, w->buffer, some, err);
        done += some;
    }
out:
    return rc;
}

/* The tensors that are kept of a file: their places in w->tensors, and their views. */
typedef struct {
    size_t *of, *order, n;
    exf_tensor *view;
} shard;

static exf_code fill_shard(shard *s, const writing *w, const char *path, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_mem_new(&s->of, w->tensors.n, sizeof *s->of, "a shard", err));
    EXF_TRY(exf_mem_new(&s->order, w->tensors.n, sizeof *s->order, "a shard", err));
    EXF_TRY(exf_mem_new(&s->view, w->tensors.n, sizeof *s->view, "a shard", err));
    for (size_t i = 0; i < w->tensors.n; i++) {
        if (strcmp(exf_st_path(w->tensors.tensor[i].from->file), path) != 0) continue;
        s->view[s->n] = w->tensors.tensor[i].view;
        s->of[s->n++] = i;
    }
out:
    return rc;
}

static exf_code write_shard(writing *w, const char *path, exf_err *err)
{
    shard s = {0};
    exf_text header = {0};
    exf_code rc;
    EXF_TRY(fill_shard(&s, w, path, err));
    if (s.n == 0) goto out; /* nothing is left of it */
    const exf_st_file *f = w->tensors.tensor[s.of[0]].from->file;
    EXF_TRY(exf_st_header(&header, s.order, path, s.view, s.n, f->meta, f->n_meta, err));
    EXF_TRY(exf_output_directory_file(w->dir, exf_path_name(path), err));
    EXF_TRY(exf_output_directory_write(w->dir, header.s, header.len, err));
    for (size_t i = 0; i < s.n; i++) {
        const exf_pruned_tensor *t = &w->tensors.tensor[s.of[s.order[i]]];
        const exf_st_tensor *stored = t->from->tensor;
        int axis = exf_pruned_axis(&stored->view);
        uint64_t row = t->rows ? stored->nbytes / (uint64_t)stored->view.shape[axis] : 0;
        if (!t->rows) EXF_TRY(copy_bytes(w, t->from, 0, stored->nbytes, err));
        for (int64_t k = 0; t->rows && k < t->view.shape[axis]; k++)
            EXF_TRY(copy_bytes(w, t->from, row * (uint64_t)t->rows[k], row, err));
    }
out:
    exf_mem_free(s.of);
    exf_mem_free(s.order);
    exf_mem_free(s.view);
    exf_text_free(&header);
    return rc;
}

static exf_code write_text(const writing *w, const char *name, const exf_text *text, exf_err *err)
{
    exf_code rc = exf_text_end(text, err);
    if (rc == EXF_OK) rc = exf_output_directory_file(w->dir, name, err);
    return rc == EXF_OK ? exf_output_directory_write(w->dir, text->s, text->len, err) : rc;
}

static int by_new_name(const void *a, const void *b)
{
    return strcmp(((const exf_pruned_tensor *)a)->name, ((const exf_pruned_tensor *)b)->name);
}

/* Sorts the tensors by their new names, which the index lists. */
static exf_code write_index(writing *w, exf_err *err)
{
    exf_text text = {0};
    exf_jw jw = {0};
    exf_code rc;
    qsort(w->tensors.tensor, w->tensors.n, sizeof *w->tensors.tensor, by_new_name);
    exf_jw_open(&jw, NULL, '{');
    exf_jw_open(&jw, "metadata", '{');
    exf_jw_count(&jw, "total_size", w->tensors.bytes);
    exf_jw_close(&jw);
    exf_jw_open(&jw, "weight_map", '{');
    for (size_t i = 0; i < w->tensors.n; i++)
        exf_jw_text(&jw, w->tensors.tensor[i].name, exf_path_name(exf_st_path(w->tensors.tensor[i].from->file)));
    exf_jw_close(&jw);
    exf_jw_close(&jw);
    EXF_TRY(exf_jw_end(&jw, &text, err));
    rc = write_text(w, "model.safetensors.index.json", &text, err);
out:
    exf_jw_free(&jw);
    exf_text_free(&text);
    return rc;
}

/* Copies small files beside the weights: tokenizer and its code, chat template, settings of generation.  A provenance.json of the
 * release is of other tables. */
static exf_code copy_file(void *self, const char *name, exf_err *err)
{
    static const char *const endings[] = {".json", ".jinja", ".txt", ".model", ".py"};
    const char *dot = strrchr(name, '.');
    writing *w = self;
    const exf_model *m = w->x->model;
    char *path = NULL, *bytes = NULL;
    exf_text config = {0};
    size_t n;
    exf_code rc;
    int is_copied = 0;
    for (size_t i = 0; dot && i < sizeof endings / sizeof *endings; i++) is_copied |= strcmp(dot, endings[i]) == 0;
    if (!is_copied || *name == '.' || strcmp(name, "model.safetensors.index.json") == 0 || strcmp(name, EXF_FACTS_FILE) == 0)
        return EXF_OK;
    EXF_TRY(exf_path_join(&path, m->dir, name, err));
    EXF_TRY(exf_file_slurp(path, SMALL_FILE, &bytes, &n, err));
    if (strcmp(name, "config.json") == 0)
        EXF_TRY(exf_pruned_config(&config, bytes, n, m->arch.n_experts, w->x->keep, w->tensors.n_dropped_layers == 0, path, err));
    else
        exf_text_append(&config, bytes, n);
    rc = write_text(w, name, &config, err);
out:
    exf_mem_free(path);
    exf_mem_free(bytes);
    exf_text_free(&config);
    return rc;
}

static exf_code write_checkpoint(const exf_export *x, const char *path, int force, exf_err *err)
{
    writing w = {.x = x};
    const exf_tables *t = x->tables;
    const exf_checkpoint *c = x->model->checkpoint;
    exf_text list = {0};
    int32_t *kept = NULL;
    exf_code rc;
    EXF_TRY(choose_kept(&kept, x, err));
    EXF_TRY(exf_pruned_tensors_make(&w.tensors, x->model, kept, (int)x->keep, err));
    EXF_TRY(exf_mem_new(&w.buffer, CHUNK, 1, "copies", err));
    if (w.tensors.n_dropped_layers)
        exf_log_warn("%s: left out %zu tensors of layers for multi-token prediction, whose experts have no scores", path,
                     w.tensors.n_dropped_layers);
    EXF_TRY(exf_output_directory_begin(&w.dir, path, force, err));
    for (size_t i = 0; i < c->n_files; i++) EXF_TRY(write_shard(&w, exf_st_path(c->file[i]), err));
    EXF_TRY(exf_each_file(x->model->dir, copy_file, &w, err));
    for (int i = 0; i < t->n_layers; i++)
        exf_expert_list_add(&list, (int)t->layer_number[i], kept + t->layer_number[i] * x->keep, x->keep);
    EXF_TRY(write_text(&w, "kept_experts.jsonl", &list, err));
    EXF_TRY(exf_table_facts_file(w.dir, x, err));
    if (c->n_files > 1) EXF_TRY(write_index(&w, err));
    EXF_TRY(exf_checkpoint_unchanged(c, err));
    rc = exf_output_directory_commit(w.dir, err);
    w.dir = NULL;
out:
    exf_output_directory_abort(w.dir);
    exf_pruned_tensors_free(&w.tensors);
    exf_text_free(&list);
    exf_mem_free(w.buffer);
    exf_mem_free(kept);
    return rc;
}

static exf_code count_bytes(const exf_export *x, uint64_t *bytes, exf_err *err)
{
    exf_pruned_tensors tensors = {0};
    int32_t *kept = NULL;
    exf_code rc = choose_kept(&kept, x, err);
    if (rc == EXF_OK) rc = exf_pruned_tensors_make(&tensors, x->model, kept, (int)x->keep, err);
    *bytes = tensors.bytes;
    exf_pruned_tensors_free(&tensors);
    exf_mem_free(kept);
    return rc;
}

const exf_writer exf_writer_reap_checkpoint = {
    .name = "reap-checkpoint",
    .file = "reap-checkpoint",
    .is_directory = 1,
    .wants_model = 1,
    .about = "the checkpoint without all but the export.experts experts of largest REAP score",
    .asks = check_settings,
    .allows = check_export,
    .bytes = count_bytes,
    .write = write_checkpoint,
};
