/* inspect_diff.c - exfold-inspect diff: what changed between two tables, and the gate of --fail-above; see inspect.h. */
#include "cli/inspect.h"

#include "artifact/provenance.h"
#include "base/mem.h"
#include "inspect/inspection.h"
#include "recipe/run_directory.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const char *path[2];
    exf_inspection inspection[2];
    exf_layer_difference *rows; /* [L + 1] */
} comparison;

static const exf_layer_difference *all_layers(const comparison *c)
{
    return &c->rows[c->inspection[0].n_layers];
}

/* ---- the gate --------------------------------------------------------------------------- */

/* Reads limits such as "flips=0.05".  c NULL: only checks them.  Otherwise refuses a change above its limit; one that is not known,
 * since nothing was observed in both, is above any. */
static exf_code apply_limits(const exf_recipe *r, const comparison *c, exf_err *err)
{
    static const char *const names[] = {"flips", "scalar", "loss", "norm", "coverage", "cost"};
    enum { N = sizeof names / sizeof *names };
    static const exf_layer_difference none;
    const exf_layer_difference *d = c ? all_layers(c) : &none;
    const double value[N] = {d->flip_traffic, d->scalar[3], d->loss[3], d->norm,
                             d->pairs ? (double)(d->gained + d->lost) / (double)d->pairs : 0, d->cost};
    int given[N] = {0};
    for (size_t i = 0; i < r->fail_above.n; i++) {
        const char *text = r->fail_above.item[i];
        size_t k = 0, n = strcspn(text, "=");
        double limit = -1;
        while (k < N && !(strlen(names[k]) == n && strncmp(text, names[k], n) == 0)) k++;
        if (k == N || !text[n] || !exf_parse_f64(text + n + 1, &limit) || !(limit >= 0))
            return exf_fail(err, EXF_USAGE,
                            "--fail-above: \"%s\" is none of flips, scalar, loss, norm, coverage, cost with = and a number from 0",
                            text);
        if (given[k]++) return exf_fail(err, EXF_USAGE, "--fail-above: %s is given twice", names[k]);
        if (c && !(value[k] <= limit))
            return exf_fail(err, EXF_THRESHOLD, "%s against %s: %s is %.4g, --fail-above allows %.4g", c->path[1], c->path[0],
                            names[k], value[k], limit);
    }
    return EXF_OK;
}

/* ---- text ----------------------------------------------------------------------------------- */

static void show_facts(const comparison *c)
{
    exf_fact_change f;
    size_t i = 0, j = 0, n = 0;
    while (exf_next_fact_change(&c->inspection[0].provenance, &c->inspection[1].provenance, &i, &j, &f)) {
        if (exf_weights_facts_list_key(f.key)) continue;
        if (!n++) printf("\nfacts\n");
        printf("  ");
        exf_print_text(f.key, 26);
        printf(" ");
        exf_print_text(f.a ? f.a : "(none)", 0);
        printf(" -> ");
        exf_print_text(f.b ? f.b : "(none)", 0);
        printf("\n");
    }
}

static void show_four(const double x[4])
{
    for (int i = 0; i < 4; i++) {
        if (isnan(x[i]))
            printf(" %8s", "-");
        else
            printf(" %8.2g", x[i]);
    }
}

static void show_row(const exf_layer_difference *d)
{
    char observed[48], targets[32];
    snprintf(observed, sizeof observed, "%" PRIu64 " -> %" PRIu64, d->observed_a, d->observed_b);
    snprintf(targets, sizeof targets, "%" PRIu64 "/%" PRIu64, d->flips, d->sources);
    if (d->layer < 0)
        printf("  all");
    else
        printf("%5d", d->layer);
    printf("  %-18s %5" PRIu64 " %5" PRIu64 " ", observed, d->gained, d->lost);
    show_four(d->scalar);
    printf(" ");
    show_four(d->loss);
    printf("  %8.2g  %-9s", d->norm, targets);
    if (!isnan(d->flip_traffic)) printf(" %5.1f %%", 100 * d->flip_traffic);
    if (!isnan(d->cost)) printf(" %6.1f %%", 100 * d->cost);
    printf("\n");
}

static void show_comparison(const comparison *c)
{
    const exf_inspection *a = &c->inspection[0], *b = &c->inspection[1];
    for (int i = 0; i < 2; i++) {
        printf(i ? "\nb " : "a ");
        exf_print_text(c->path[i], 0);
    }
    printf("\n");
    printf("%s\n", exf_same_numbers(a, b) ? "equal counts, scalars, losses, norms and pools"
                                          : "the numbers differ: counts, scalars, losses, norms or pools");
    show_facts(c);
    printf("\nlayer  pairs observed                 |S_b - S_a|                          |L_b - L_a|                            "
           "norms     best target changed\n"
           "       a -> b             gained lost      50 %%     90 %%     99 %%  largest      50 %%     90 %%     99 %%  largest  "
           " relative  sources   traffic     cost\n");
    for (int l = 0; l <= a->n_layers; l++) show_row(&c->rows[l]);
    for (int i = 0; i < a->n_pools; i++) {
        exf_pool_difference d;
        if (exf_compare_pool(a, i, b, &d))
            printf("static pool of %d by %s: %" PRIu64 "/%" PRIu64 " members changed, %.1f %% of the traffic goes to another "
                   "target\n",
                   d.size, d.by, d.members, d.places, isnan(d.target_traffic) ? 0.0 : 100 * d.target_traffic);
        else
            printf("static pool of %d by %s: in a only\n", a->pool[i].size, a->pool[i].by);
    }
    for (int i = 0; i < b->n_pools; i++) {
        exf_pool_difference d;
        if (exf_compare_pool(b, i, a, &d)) continue;
        printf("static pool of %d by %s: in b only\n", b->pool[i].size, b->pool[i].by);
    }
}

/* ---- JSON -------------------------------------------------------------------------------------- */

static void write_four(exf_jw *w, const char *key, const double x[4])
{
    exf_jw_open(w, key, '[');
    for (int i = 0; i < 4; i++) exf_jw_real(w, NULL, x[i]);
    exf_jw_close(w);
}

static void write_row(exf_jw *w, const char *key, const exf_layer_difference *d)
{
    exf_jw_open(w, key, '{');
    if (d->layer >= 0) exf_jw_int(w, "layer", d->layer);
    exf_jw_count(w, "pairs", d->pairs);
    exf_jw_count(w, "observed_a", d->observed_a);
    exf_jw_count(w, "observed_b", d->observed_b);
    exf_jw_count(w, "gained", d->gained);
    exf_jw_count(w, "lost", d->lost);
    write_four(w, "scalar_change", d->scalar);
    write_four(w, "loss_change", d->loss);
    exf_jw_real(w, "norm_change", d->norm);
    exf_jw_count(w, "sources", d->sources);
    exf_jw_count(w, "flips", d->flips);
    exf_jw_real(w, "flip_traffic", d->flip_traffic);
    exf_jw_real(w, "choice_cost", d->cost);
    exf_jw_close(w);
}

static void write_facts(exf_jw *w, const comparison *c)
{
    exf_fact_change f;
    size_t i = 0, j = 0;
    exf_jw_open(w, "facts", '{');
    while (exf_next_fact_change(&c->inspection[0].provenance, &c->inspection[1].provenance, &i, &j, &f)) {
        exf_jw_open(w, f.key, '{');
        exf_jw_text(w, "a", f.a);
        exf_jw_text(w, "b", f.b);
        exf_jw_close(w);
    }
    exf_jw_close(w);
}

static void write_pools(exf_jw *w, const comparison *c)
{
    exf_jw_open(w, "pools", '[');
    for (int i = 0; i < c->inspection[0].n_pools; i++) {
        exf_pool_difference d;
        if (!exf_compare_pool(&c->inspection[0], i, &c->inspection[1], &d)) continue;
        exf_jw_open(w, NULL, '{');
        exf_jw_int(w, "size", d.size);
        exf_jw_text(w, "by", d.by);
        exf_jw_count(w, "places", d.places);
        exf_jw_count(w, "members_changed", d.members);
        exf_jw_real(w, "target_traffic", d.target_traffic);
        exf_jw_close(w);
    }
    exf_jw_close(w);
}

static exf_code print_as_json(const comparison *c, exf_err *err)
{
    exf_jw w = {0};
    exf_jw_open(&w, NULL, '{');
    exf_jw_text(&w, "a", c->path[0]);
    exf_jw_text(&w, "b", c->path[1]);
    exf_jw_bool(&w, "equal", exf_same_numbers(&c->inspection[0], &c->inspection[1]));
    write_facts(&w, c);
    exf_jw_open(&w, "layers", '[');
    for (int l = 0; l < c->inspection[0].n_layers; l++) write_row(&w, NULL, &c->rows[l]);
    exf_jw_close(&w);
    write_row(&w, "all", all_layers(c));
    write_pools(&w, c);
    exf_jw_close(&w);
    return exf_print_json(&w, err);
}

exf_code exf_inspect_diff(exf_recipe *r, exf_err *err)
{
    comparison c = {.path = {r->inputs[0], r->inputs[1]}};
    exf_code rc;
    EXF_TRY(apply_limits(r, NULL, err));
    for (int i = 0; i < 2; i++) EXF_TRY(exf_inspection_read(&c.inspection[i], c.path[i], NULL, err));
    EXF_TRY(exf_mem_new(&c.rows, (size_t)c.inspection[0].n_layers + 1, sizeof *c.rows, "differences", err));
    EXF_TRY(exf_compare(&c.inspection[0], c.path[0], &c.inspection[1], c.path[1], c.rows, err));
    if (r->json)
        EXF_TRY(print_as_json(&c, err));
    else
        show_comparison(&c);
    rc = apply_limits(r, &c, err);
out:
    exf_mem_free(c.rows);
    for (int i = 0; i < 2; i++) exf_inspection_free(&c.inspection[i]);
    return rc;
}
