/* fuzz_fold_layers.c - libFuzzer target: any bytes are tables of exfold/fold.h or are refused in words, and the arrays of what
 * opens lie inside of the bytes.
 *   make fuzz FUZZ=fold_layers SECONDS=60 */
#include "exfold/fold.h"
#include "tests/fuzz/fuzz.h"

/* Reads the first and the last number of a table of n, if there is one. */
static float touch(const float *table, size_t n)
{
    return table ? table[0] + table[n - 1] : 0;
}

static void look_at(const exf_fold_layers *l, const void *bytes, size_t size)
{
    exf_fold_tables t;
    exf_fold_array a;
    size_t e = (size_t)l->n_experts;
    must(l->n_layers > 0 && l->n_experts >= 3 && l->coeff && l->loss);
    for (int i = 0; i < l->n_layers; i++) {
        int number = l->numbers ? l->numbers[i] : i;
        must(exf_fold_layers_index(l, number) == i);
        must(exf_fold_layers_at(l, number, &t) == EXF_FOLD_OK);
        float sum = touch(t.coeff, e * e) + touch(t.cosine, e * e) + touch(t.norms, e) + touch(t.rms, e);
        must(sum == sum || sum != sum); /* the reads are what matters */
    }
    must(exf_fold_layers_find(l, "loss", &a) == EXF_FOLD_OK && a.data == l->loss && a.n_dims == 3);
    const char *start = bytes, *data = a.data;
    must(data >= start && data + a.bytes <= start + size);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char why[120];
    exf_fold_layers l = EXF_FOLD_LAYERS_INIT;
    void *copy = aligned_alloc(8, (size + 8) / 8 * 8);
    must(copy != NULL);
    memcpy(copy, bytes, size);
    memset(why, 0, sizeof why);
    exf_fold_status status = exf_fold_layers_read(&l, copy, size, why, sizeof why);
    must(status == EXF_FOLD_OK || (status == EXF_FOLD_FILE && why[0] && !l.file && !l.coeff));
    if (status == EXF_FOLD_OK) look_at(&l, copy, size);
    exf_fold_layers_free(&l);
    free(copy);
    return 0;
}
