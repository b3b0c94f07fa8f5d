/* layer_datasets.c - writes what a layer of statistics has of every pair and expert; see layer_datasets.h.
 *
 * A layer of 128 experts is 6.1 MB, which a GPU's pass has every 25 ms: rounding, writing and checksums are shared out among
 * threads, each of which rounds what it writes next, and libhdf5, which serves one, makes the datasets before and adds the
 * checksums after. */
#include "artifact/layer_datasets.h"

#include "base/mem.h"

/* Two datasets of each sum, and four counts. */
#define X(name) +2
enum { MOST_WRITTEN = 4 EXF_PAIR_SUMS(X) EXF_SEQUENCE_SUMS(X) EXF_EXPERT_SUMS(X) EXF_HALF_SUMS(X) };
#undef X

/* A layer's sums and counts, on their way to the file. */
typedef struct {
    char path[MOST_WRITTEN][EXF_DATASET_PATH];
    exf_tensor t[MOST_WRITTEN];
    struct {
        const exf_exact *from; /* NULL: t has its elements */
        double *to;
        size_t n;
    } rounding[MOST_WRITTEN];  /* gives t its elements before it is written */
    size_t n;
    double *rounded, *next;    /* room for all that is rounded */
} written;

static void add_written(written *b, exf_layer_dataset d, const void *data)
{
    memcpy(b->path[b->n], d.path, sizeof d.path);
    b->t[b->n] = d.t;
    b->t[b->n].name = b->path[b->n];
    b->t[b->n++].data = data;
}

static void add_sums(written *b, int layer, const char *name, const exf_exact *sum, int rank, int64_t e)
{
    size_t n = (size_t)(rank == 2 ? e * e : e);
    b->rounding[b->n].from = sum;
    b->rounding[b->n].to = b->next;
    b->rounding[b->n].n = n;
    add_written(b, exf_layer_sums_dataset(layer, name, rank, e, 0), b->next);
    b->next += n;
    add_written(b, exf_layer_sums_dataset(layer, name, rank, e, 1), sum);
}

static void add_half(written *b, int layer, const exf_layer_statistics *s, int64_t e)
{
#define X(name) add_written(b, exf_half_sums_dataset(layer, #name, e), s->name);
    EXF_HALF_SUMS(X)
#undef X
    add_written(b, exf_layer_dataset_of(layer, "half/count", EXF_DT_U64, e, e, 0), s->half_count);
}

/* Lists what a layer has of every pair and every expert. */
static void list_sums(written *b, const exf_statistics_writer *w, int layer, const exf_layer_statistics *s)
{
    int64_t e = w->shape.n_experts;
#define X(name) add_sums(b, layer, #name, s->name, 2, e);
    EXF_PAIR_SUMS(X)
    if (w->by_sequence) {
        EXF_SEQUENCE_SUMS(X)
    }
#undef X
#define X(name) add_sums(b, layer, #name, s->name, 1, e);
    EXF_EXPERT_SUMS_OF_VERSION_1(X)
    if (!w->without_energies) X(energy_sum)
#undef X
    add_written(b, exf_layer_dataset_of(layer, "count", EXF_DT_U64, e, e, 0), s->count);
    add_written(b, exf_layer_dataset_of(layer, "norm_count", EXF_DT_U64, e, 0, 0), s->norm_count);
    if (w->by_sequence) add_written(b, exf_layer_dataset_of(layer, "sequences", EXF_DT_U64, e, e, 0), s->sequences);
    if (w->halves) add_half(b, layer, s, e);
}

/* Rounds the exact sums of a dataset to nearest, where it has rounded ones. */
static void round_dataset(void *self, size_t i)
{
    const written *b = self;
    const exf_exact *from = b->rounding[i].from;
    for (size_t k = 0; k < b->rounding[i].n; k++) b->rounding[i].to[k] = exf_exact_value(&from[k]);
}

exf_code exf_layer_sums_write(const exf_statistics_writer *w, int layer, const exf_layer_statistics *s, exf_err *err)
{
    written *b = NULL;
    size_t e = (size_t)w->shape.n_experts, most = 0;
    exf_code rc;
#define X(name) most += e * e;
    EXF_PAIR_SUMS(X) EXF_SEQUENCE_SUMS(X)
#undef X
#define X(name) most += e;
    EXF_EXPERT_SUMS(X)
#undef X
    EXF_TRY(exf_mem_new(&b, 1, sizeof *b, "list of sums", err));
    EXF_TRY(exf_mem_raw(&b->rounded, most, sizeof *b->rounded, "rounded sums", err));
    b->next = b->rounded;
    list_sums(b, w, layer, s);
    EXF_TRY(exf_stop_check(err));
    rc = exf_h5_write_all(w->h, b->t, b->n, round_dataset, b, err);
out:
    if (b) exf_mem_free(b->rounded);
    exf_mem_free(b);
    return rc;
}
