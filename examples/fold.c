/* fold.c - folds the routes of a small batch as a runtime would, on the host.
 *
 *     cc fold.c $(pkg-config --cflags --libs exfold-fold) -o fold && ./fold
 *
 * A runtime opens the tables once (exf_fold_layers_load, docs/folding-in-an-engine.md) and calls the
 * _cuda forms of these functions, with device pointers and its stream, between router and experts. */
#include <exfold/fold.h>
#include <stdio.h>
#include <string.h>

enum { E = 6, K = 4, TOKENS = 2 };

/* A layer's tables: any expert stands for its neighbour at half its size, for others not at all. */
static void fill_tables(float *coeff, float *loss, float *norms)
{
    for (int s = 0; s < E; s++) {
        norms[s] = 1;
        for (int t = 0; t < E; t++) {
            int near = s - t == 1 || t - s == 1;
            coeff[s * E + t] = s == t ? 1.0f : near ? 0.5f : 0.0f;
            loss[s * E + t] = near ? 0.2f : EXF_FOLD_NEVER;
        }
    }
}

static void print_routes(const char *title, const exf_fold_routes *r)
{
    const int32_t *ids = r->ids;
    const float *weights = r->weights;
    printf("%s\n", title);
    for (int i = 0; i < r->rows * r->width; i++)
        printf("  %d: %.2f%s", (int)ids[i], (double)weights[i], (i + 1) % r->width ? "" : "\n");
}

/* Prints what becomes of a token's routes, which is for debugging: on the host, one token at a time. */
static exf_fold_status print_fates(const exf_fold_routes *r, int row, const exf_fold_tables *t, const exf_fold_prefill_options *o)
{
    exf_fold_explained slots[K];
    exf_fold_status status = exf_fold_explain(slots, EXF_FOLD_CALL_PREFILL, r, row, t, o);
    for (int k = 0; k < K && status == EXF_FOLD_OK; k++) {
        printf("  expert %d: %s", slots[k].expert, exf_fold_fate_text(slots[k].fate));
        if (slots[k].target >= 0) printf(" %d, times %.2f", slots[k].target, (double)slots[k].scalar);
        printf("\n");
    }
    return status;
}

static int failed(const char *what, exf_fold_status status)
{
    if (status != EXF_FOLD_OK) fprintf(stderr, "fold: %s: %s\n", what, exf_fold_status_text(status));
    return status != EXF_FOLD_OK;
}

int main(void)
{
    float coeff[E * E], loss[E * E], norms[E];
    int32_t ids[TOKENS * K] = {0, 1, 2, 3, 5, 4, 1, 0}, kept_ids[TOKENS * 2];
    float weights[TOKENS * K] = {0.4f, 0.1f, 0.3f, 0.2f, 0.4f, 0.26f, 0.14f, 0.2f}, kept_weights[TOKENS * 2];
    exf_fold_tables tables = {.coeff = coeff, .loss = loss, .norms = norms, .n_experts = E};
    exf_fold_routes routes = {.ids = ids, .weights = weights, .rows = TOKENS, .width = K};
    exf_fold_routes kept = {.ids = kept_ids, .weights = kept_weights, .rows = TOKENS, .width = 2};
    exf_fold_prefill_options two_routes = EXF_FOLD_PREFILL_INIT;
    exf_fold_decode_options three_experts = EXF_FOLD_DECODE_INIT;

    two_routes.keep = 2;
    two_routes.rescale = EXF_FOLD_RESCALE_SUM;
    three_experts.pool = 3;
    if (exf_fold_abi() != EXF_FOLD_ABI) {
        fprintf(stderr, "fold: compiled for ABI %d, the library has %d\n", EXF_FOLD_ABI, exf_fold_abi());
        return 1;
    }
    fill_tables(coeff, loss, norms);
    print_routes("routed", &routes);
    if (failed("prefill", exf_fold_prefill_cpu(&routes, &kept, &tables, &two_routes))) return 1;
    print_routes("prefill, 2 routes a token", &kept);
    printf("the first token\n");
    if (failed("explain", print_fates(&routes, 0, &tables, &two_routes))) return 1;
    if (failed("decode", exf_fold_decode_cpu(&routes, &tables, &three_experts))) return 1;
    print_routes("decode, 3 experts in the batch", &routes);
    return 0;
}
