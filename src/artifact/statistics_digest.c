/* statistics_digest.c - hashes a statistics file for its digest while it is written; see statistics.h.
 *
 * The digest walks over the layers in order of their groups' names, 0, 1, 10, 11, ..., 2: a layer is hashed as soon as all that
 * come before it are written.  Of 48 layers nine tenths are hashed by then when the last one is. */
#include "artifact/statistics.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Orders layers as their groups' names are: 10 before 2. */
static int compare_names(const void *a, const void *b)
{
    const struct exf_hashed_layer *x = a, *y = b;
    char name[2][16];
    snprintf(name[0], sizeof name[0], "%d", (int)x->number);
    snprintf(name[1], sizeof name[1], "%d", (int)y->number);
    return strcmp(name[0], name[1]);
}

exf_code exf_statistics_order_layers(exf_statistics_writer *w, const exf_statistics_header *head, exf_err *err)
{
    exf_code rc = exf_mem_new(&w->in_digest, (size_t)head->n_layers, sizeof *w->in_digest, "list of layers", err);
    if (rc != EXF_OK) return rc;
    w->n_layers = head->n_layers;
    for (int i = 0; i < w->n_layers; i++) w->in_digest[i].number = head->layer_number[i];
    qsort(w->in_digest, (size_t)w->n_layers, sizeof *w->in_digest, compare_names);
    return EXF_OK;
}

exf_code exf_statistics_layer_done(exf_statistics_writer *w, int layer, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; i < w->n_layers; i++) w->in_digest[i].done |= w->in_digest[i].number == layer;
    for (; w->n_hashed < w->n_layers && w->in_digest[w->n_hashed].done; w->n_hashed++) {
        char group[32];
        snprintf(group, sizeof group, "/layers/%d", (int)w->in_digest[w->n_hashed].number);
        EXF_TRY(exf_h5_digest_through(w->h, group, err));
    }
out:
    return rc;
}
