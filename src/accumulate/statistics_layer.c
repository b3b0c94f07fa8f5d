/* statistics_layer.c - a layer of statistics in the file (statistics_file.c): writes the datasets of its arrays in the order
 * of their table, and reads them back; the chapters refuse what cannot be.
 *
 * A layer of 128 experts is 6.1 MB, which a GPU's pass has every 25 ms: rounding, writing and checksums are shared out among
 * threads, each of which rounds what it writes next, and libhdf5, which serves one, makes the datasets before and adds the
 * checksums after. */
#include "accumulate/accumulate_internal.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { PATH_LEN = 96, MOST_DATASETS = 2 * EXF_N_LAYER_ARRAYS };

/* Describes the dataset of an array's words, or of its values rounded to nearest. */
static exf_tensor dataset_of(char path[PATH_LEN], int layer, const exf_layer_array *a, int n_experts, int rounded)
{
    exf_tensor t = exf_layer_array_tensor(a, n_experts, NULL);
    snprintf(path, PATH_LEN, "/layers/%d/%s", layer, rounded ? a->rounded : a->words);
    t.name = path;
    if (rounded) {
        t.dtype = EXF_DT_F64;
        t.shape[--t.rank] = 0; /* the axis of words */
    }
    return t;
}

/* Returns the length of the name of the array's group below the layer's, or of its dataset if it is in none; *name points to it. */
static int group_of(const exf_layer_array *a, const char **name)
{
    *name = a->rounded ? a->rounded : a->words;
    return (int)strcspn(*name, "/");
}

/* Looks whether a layer has the array's group. */
static exf_code look_for(exf_h5 *h, int layer, const exf_layer_array *a, int *found, exf_err *err)
{
    char path[PATH_LEN];
    const char *group;
    int len = group_of(a, &group);
    snprintf(path, sizeof path, "/layers/%d/%.*s", layer, len, group);
    return exf_h5_exists(h, path, found, err);
}

/* ---- writing ------------------------------------------------------------------------ */

/* Datasets on their way to the file. */
typedef struct {
    char path[MOST_DATASETS][PATH_LEN];
    exf_tensor t[MOST_DATASETS];
    struct {
        const exf_exact *from; /* NULL: t has its elements */
        double *to;
        size_t n;
    } rounding[MOST_DATASETS]; /* gives t its elements before it is written */
    size_t n;
    double *rounded, *next;    /* room for the rounded values of all arrays */
} written;

static void add_array(written *b, int layer, const exf_layer_array *a, const exf_layer_statistics *s)
{
    const void *array = exf_layer_array_at(a, s);
    if (a->rounded) {
        size_t n = exf_layer_array_count(a, s->n_experts);
        b->rounding[b->n].from = array;
        b->rounding[b->n].to = b->next;
        b->rounding[b->n].n = n;
        b->t[b->n] = dataset_of(b->path[b->n], layer, a, s->n_experts, 1);
        b->t[b->n++].data = b->next;
        b->next += n;
    }
    b->t[b->n] = dataset_of(b->path[b->n], layer, a, s->n_experts, 0);
    b->t[b->n++].data = array;
}

/* Rounds the exact sums of a dataset to nearest, if it has rounded ones. */
static void round_dataset(void *self, size_t i)
{
    const written *b = self;
    const exf_exact *from = b->rounding[i].from;
    for (size_t k = 0; k < b->rounding[i].n; k++) b->rounding[i].to[k] = exf_exact_value(&from[k]);
}

/* Writes the groups of a part that were observed, whose last array is not all 0, one dataset after the other. */
static exf_code write_observed(const exf_statistics_writer *w, written *b, exf_layer_part part, int layer,
                               const exf_layer_statistics *s, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0, n; i < EXF_N_LAYER_ARRAYS; i += n) {
        const exf_layer_array *a = &exf_layer_arrays[i];
        const char *group, *other;
        int len = group_of(a, &group);
        for (n = 1; i + n < EXF_N_LAYER_ARRAYS && a[n].part == a->part; n++) /* arrays of the group */
            if (group_of(&a[n], &other) != len || strncmp(group, other, (size_t)len) != 0) break;
        exf_tensor last = exf_layer_array_tensor(&a[n - 1], s->n_experts, NULL);
        const uint64_t *word = exf_layer_array_at(&a[n - 1], s);
        uint64_t any = 0;
        for (int64_t k = 0; a->part == part && k < exf_tensor_count(&last); k++) any |= word[k];
        if (!any) continue;
        memset(b->rounding, 0, sizeof b->rounding);
        b->n = 0;
        b->next = b->rounded;
        for (int k = 0; k < n; k++) add_array(b, layer, &a[k], s);
        for (size_t k = 0; k < b->n; k++) {
            round_dataset(b, k);
            EXF_TRY(exf_h5_write(w->h, &b->t[k], err));
        }
    }
out:
    return rc;
}

exf_code exf_statistics_put(exf_statistics_writer *w, int layer, const exf_layer_statistics *s, exf_err *err)
{
    const exf_layer_array *end = exf_layer_arrays + EXF_N_LAYER_ARRAYS;
    exf_sum_array group[EXF_MOST_SUM_ARRAYS];
    written *b = NULL;
    size_t n = 0;
    exf_code rc;
    for (const exf_layer_array *a = exf_layer_arrays; a < end; a++)
        if (a->rounded) n += exf_layer_array_count(a, s->n_experts);
    EXF_TRY(exf_mem_new(&b, 1, sizeof *b, "list of sums", err));
    EXF_TRY(exf_mem_raw(&b->rounded, n, sizeof *b->rounded, "rounded sums", err));
    b->next = b->rounded;
    for (const exf_layer_array *a = exf_layer_arrays; a < end; a++)
        if (a->part < EXF_PART_BARE && w->has[a->part]) add_array(b, layer, a, s);
    EXF_TRY(exf_stop_check(err));
    EXF_TRY(exf_h5_write_all(w->h, b->t, b->n, round_dataset, b, err));
    EXF_TRY(write_observed(w, b, EXF_PART_BARE, layer, s, err));
    if (s->norms.known) EXF_TRY(exf_sum_arrays_do(EXF_SUMS_WRITE, group, exf_norm_sums_list(&s->norms, group), w->h, layer, err));
    EXF_TRY(write_observed(w, b, EXF_PART_STREAM, layer, s, err));
    EXF_TRY(write_observed(w, b, EXF_PART_OBSERVED, layer, s, err));
    n = exf_route_sample_list(&s->routes, s->routes.n, group);
    rc = exf_sum_arrays_do(EXF_SUMS_WRITE, group, n, w->h, layer, err);
out:
    if (b) exf_mem_free(b->rounded);
    exf_mem_free(b);
    return rc;
}

/* ---- reading ------------------------------------------------------------------------ */

exf_code exf_statistics_find_parts(exf_statistics_reader *r, exf_err *err)
{
    char path[PATH_LEN];
    int layer = r->layer_number[0];
    exf_code rc = EXF_OK;
    for (int i = 0; i < EXF_N_LAYER_ARRAYS; i++) {
        const exf_layer_array *a = &exf_layer_arrays[i];
        exf_tensor t = dataset_of(path, layer, a, (int)r->shape.n_experts, 0);
        if (a->part == EXF_PART_ALWAYS && a->of == EXF_OF_PAIR) EXF_TRY(exf_h5_expect(r->h, &t, err));
        if (a->part > EXF_PART_SEQUENCES && a->part < EXF_PART_BARE)
            EXF_TRY(look_for(r->h, layer, a, &r->has[a->part], err));
    }
    r->has[EXF_PART_ALWAYS] = 1;
    r->has[EXF_PART_SEQUENCES] = r->sequences.length != NULL;
    r->has[EXF_PART_HALVES] &= r->has[EXF_PART_SEQUENCES];
out:
    return rc;
}

/* Reads an array, and compares its rounded values, if the file has them, with the exact ones. */
static exf_code read_array(const exf_statistics_reader *r, int layer, const exf_layer_array *a, const exf_layer_statistics *s,
                           exf_err *err)
{
    char path[PATH_LEN];
    void *array = exf_layer_array_at(a, s);
    const exf_exact *sum = array;
    size_t n = exf_layer_array_count(a, s->n_experts);
    exf_tensor t = dataset_of(path, layer, a, s->n_experts, 0);
    double *rounded = NULL;
    exf_code rc;
    EXF_TRY(exf_h5_read(r->h, &t, array, err));
    if (!a->rounded) goto out;
    t = dataset_of(path, layer, a, s->n_experts, 1);
    EXF_TRY(exf_mem_new(&rounded, n, sizeof *rounded, "rounded sums", err));
    EXF_TRY(exf_h5_read(r->h, &t, rounded, err));
    EXF_TRY(exf_stop_check(err));
    for (size_t i = 0; rc == EXF_OK && i < n; i++)
        if (!(rounded[i] == exf_exact_value(&sum[i])))
            rc = exf_fail(err, EXF_FORMAT, "%s: %s[%zu] is %.17g, its exact sum is %.17g", exf_h5_path(r->h), path, i, rounded[i],
                          exf_exact_value(&sum[i]));
out:
    exf_mem_free(rounded);
    return rc;
}

exf_code exf_statistics_get(exf_statistics_reader *r, int i, exf_layer_statistics *s, exf_err *err)
{
    int layer = r->layer_number[i], found;
    exf_layer_read read = {.r = r, .layer = layer};
    exf_code rc = EXF_OK;
    exf_layer_statistics_zero(s);
    for (int k = 0; k < EXF_N_LAYER_ARRAYS; k++) {
        const exf_layer_array *a = &exf_layer_arrays[k];
        found = a->part < EXF_PART_BARE && r->has[a->part];
        if (a->part >= EXF_PART_BARE) EXF_TRY(look_for(r->h, layer, a, &found, err));
        if (found) EXF_TRY(read_array(r, layer, a, s, err));
        read.has[a->part] |= found;
    }
    EXF_TRY(exf_stream_check_layer(&read, s, err));
    EXF_TRY(exf_pairs_check_layer(&read, s, err));
    EXF_TRY(exf_sequences_check_layer(&read, s, err));
    EXF_TRY(exf_common_input_check_layer(&read, s, err));
    EXF_TRY(exf_norm_sums_read(&s->norms, r->h, &r->shape, layer, s->norm_count, err));
    rc = exf_route_sample_read(&s->routes, r->h, &r->shape, layer, err);
out:
    return rc;
}
