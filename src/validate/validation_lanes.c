/* validation_lanes.c - the lanes of a validation: the variants that were asked for, by the sizes of their decode batches, and what
 * runs beside them, baselines and halves of the calibration; see validation.h. */
#include "validate/validation.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

static exf_code add_lane(exf_lane_list *l, const exf_variant *v, exf_lane_role role, int batch, const exf_tables *t, exf_err *err)
{
    exf_code rc = exf_mem_grow(&l->lane, &l->cap, l->n + 1, sizeof *l->lane, "lanes", err);
    if (rc != EXF_OK) return rc;
    exf_validate_lane *lane = &l->lane[l->n++];
    *lane = (exf_validate_lane){.role = role, .batch = batch, .tables = t};
    memcpy(&lane->variant, v, sizeof *v); /* with its padding: exf_variant_equal() */
    return EXF_OK;
}

void exf_lanes_free(exf_lane_list *l)
{
    exf_mem_free(l->lane);
    memset(l, 0, sizeof *l);
}

/* ---- what was asked for ------------------------------------------------------------------------- */

static exf_code add_asked(exf_lane_list *l, const exf_variant *v, int batch, const exf_tables *t, exf_err *err)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->lane[i].variant.name, v->name) == 0)
            return exf_fail(err, EXF_USAGE, "validate.variants: \"%s\" stands twice", v->name);
    exf_code rc = add_lane(l, v, EXF_LANE_ASKED, batch, t, err);
    l->n_asked = l->n;
    return rc;
}

static exf_code refuse_batch(const exf_variant *v, const exf_int_list *sizes, exf_err *err)
{
    exf_text list = {0};
    for (size_t i = 0; i < sizes->n; i++) exf_text_appendf(&list, "%s%lld", i ? "," : "", (long long)sizes->item[i]);
    exf_code rc = exf_text_end(&list, err);
    if (rc == EXF_OK)
        rc = exf_fail(err, EXF_USAGE,
                      "validate.variants: variant \"%s\": batch=%d is none of validate.decode_batch, %s; give it there too "
                      "(--set validate.decode_batch=%s,%d)",
                      v->name, v->batch, list.s, list.s, v->batch);
    exf_text_free(&list);
    return rc;
}

exf_code exf_lanes_ask(exf_lane_list *l, const exf_variant *v, const exf_int_list *sizes, const exf_tables *t, exf_err *err)
{
    exf_code rc = EXF_OK;
    int found = 0;
    l->sizes = sizes;
    if (v->decode == EXF_DECODE_NONE) return add_asked(l, v, 0, t, err);
    for (size_t i = 0; i < sizes->n; i++) {
        exf_variant one = *v;
        if (v->batch && v->batch != sizes->item[i]) continue;
        if (!v->batch && sizes->n > 1) EXF_TRY(exf_variant_set_batch(&one, (int)sizes->item[i], err));
        EXF_TRY(add_asked(l, &one, (int)i, t, err));
        found = 1;
    }
    if (!found) rc = refuse_batch(v, sizes, err);
out:
    return rc;
}

/* ---- baselines ----------------------------------------------------------------------------------- */

/* Returns 1 if baselines run beside the lane: it folds prefill, or decode into a dynamic pool, or both, in all layers, and leaves
 * something out: a batch that cannot route to more experts than its pool has does not. */
static int has_baselines(const exf_lane_list *l, const exf_validate_lane *lane, const exf_architecture *a)
{
    const exf_variant *v = &lane->variant;
    int64_t slots = v->decode == EXF_DECODE_NONE ? 0 : l->sizes->item[lane->batch] * a->top_k;
    int prefill = v->prefill == EXF_PREFILL_FOLD && v->prefill_options.keep < a->top_k && !v->only_layer;
    int decode = v->decode == EXF_DECODE_DYNAMIC && v->outside == EXF_OUTSIDE_FOLDED && v->decode_options.pool < a->n_experts &&
                 (prefill || v->decode_options.pool < slots);
    return (prefill || v->prefill == EXF_PREFILL_NONE) && (decode || v->decode == EXF_DECODE_NONE) && (prefill || decode);
}

/* Returns 1 if it folds by the pairs' own scalars, as a baseline that folds at random does. */
static int is_plain(const exf_variant *v)
{
    return v->prefill_projector == &exf_projector_pair && v->decode_projector == &exf_projector_pair && !v->budget;
}

/* Returns 1 if the lanes have the same P, D and decode batches. */
static int same_size(const exf_validate_lane *a, const exf_validate_lane *b)
{
    const exf_variant *x = &a->variant, *y = &b->variant;
    return x->prefill == y->prefill && x->decode == y->decode && x->prefill_options.keep == y->prefill_options.keep &&
           x->decode_options.pool == y->decode_options.pool && a->batch == b->batch;
}

/* Returns 1 if a lane runs the variant already, however it is spelled. */
static int is_there(const exf_lane_list *l, const exf_variant *v, int batch)
{
    for (size_t i = 0; i < l->n; i++) {
        exf_variant x;
        memcpy(&x, &l->lane[i].variant, sizeof x);
        x.batch = v->batch;
        if (l->lane[i].batch == batch && exf_variant_equal(&x, v)) return 1;
    }
    return 0;
}

enum { DROP, RENORM, RANDOM, BASELINES };

/* Spells baseline b of a variant: same P, D, rank and batch. */
static void spell_baseline(char name[EXF_VARIANT_NAME_LEN], const exf_variant *v, int b)
{
    static const char *const how[] = {"drop", "renorm", "random"};
    static const char *const prefill_rank[] = {"", ":rank=score", ":rank=norm"};
    static const char *const decode_rank[] = {"", "rank=energy,", "rank=score,"};
    char prefill[EXF_VARIANT_NAME_LEN / 2] = "", decode[EXF_VARIANT_NAME_LEN / 2] = "", batch[24] = "";
    if (v->prefill != EXF_PREFILL_NONE && b == RANDOM)
        snprintf(prefill, sizeof prefill, "random%d%s", v->prefill_options.keep, prefill_rank[v->prefill_options.rank]);
    else if (v->prefill != EXF_PREFILL_NONE)
        snprintf(prefill, sizeof prefill, "top%d:%s", v->prefill_options.keep, how[b]);
    if (v->batch) snprintf(batch, sizeof batch, ",batch=%d", v->batch);
    if (v->decode != EXF_DECODE_NONE)
        snprintf(decode, sizeof decode, "D%d:%sfold=%s%s", v->decode_options.pool, decode_rank[v->decode_options.importance],
                 how[b], batch);
    snprintf(name, EXF_VARIANT_NAME_LEN, "%s%s%s", prefill, *prefill && *decode ? "+" : "", decode);
}

exf_code exf_lanes_add_baselines(exf_lane_list *l, const exf_architecture *a, const exf_tables *t, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < l->n_asked; i++) {
        int again = 0; /* 1: an earlier lane of that size has had them */
        if (!has_baselines(l, &l->lane[i], a)) continue;
        for (size_t j = 0; j < i; j++) again |= has_baselines(l, &l->lane[j], a) && same_size(&l->lane[j], &l->lane[i]);
        size_t model = i; /* baselines rank as the first plain lane of that size does */
        for (size_t j = l->n_asked; j-- > i;)
            if (has_baselines(l, &l->lane[j], a) && same_size(&l->lane[j], &l->lane[i]) && is_plain(&l->lane[j].variant)) model = j;
        for (int b = 0; b < BASELINES && !again; b++) {
            const exf_variant of = l->lane[model].variant;
            char name[EXF_VARIANT_NAME_LEN];
            exf_variant v;
            spell_baseline(name, &of, b);
            EXF_TRY(exf_variant_parse(&v, name, err));
            v.decode_options.candidates = of.decode_options.candidates; /* as the runtime has them, which no option says */
            v.folds_hashed = of.folds_hashed;
            if (!is_there(l, &v, l->lane[i].batch)) EXF_TRY(add_lane(l, &v, EXF_LANE_BASELINE, l->lane[i].batch, t, err));
        }
    }
out:
    return rc;
}

/* ---- halves of the calibration ------------------------------------------------------------------- */

/* Returns 1 if the variant folds prefill alone, or decode into a dynamic pool alone, by the pairs' scalars and losses, which
 * tables have of each half too. */
static int has_halves(const exf_lane_list *l, const exf_validate_lane *lane, const exf_architecture *a, exf_prefill_kind prefill)
{
    const exf_variant *v = &lane->variant;
    int one_kind = v->prefill == prefill && (prefill == EXF_PREFILL_NONE || v->decode == EXF_DECODE_NONE);
    return one_kind && has_baselines(l, lane, a) && is_plain(v) && !v->prefill_frobenius && !v->decode_frobenius &&
           strlen(v->name) + strlen(" half 1") < sizeof v->name;
}

exf_code exf_lanes_add_halves(exf_lane_list *l, const exf_architecture *a, const exf_tables *t, exf_err *err)
{
    static const exf_prefill_kind kinds[] = {EXF_PREFILL_FOLD, EXF_PREFILL_NONE};
    exf_code rc = EXF_OK;
    if (!t->half_scalar[0]) return EXF_OK; /* an earlier version's, or too little text for two halves */
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        size_t row = 0;
        while (row < l->n_asked && !has_halves(l, &l->lane[row], a, kinds[k])) row++;
        for (int half = 0; row < l->n_asked && half < 2; half++) {
            exf_variant v = l->lane[row].variant;
            l->half[half] = exf_tables_half(t, half);
            snprintf(v.name + strlen(v.name), sizeof v.name - strlen(v.name), " half %d", half + 1);
            EXF_TRY(add_lane(l, &v, EXF_LANE_HALF, l->lane[row].batch, &l->half[half], err));
        }
    }
out:
    return rc;
}

exf_code exf_lanes_names(exf_text *out, const exf_lane_list *l, exf_err *err)
{
    for (size_t i = 0; i < l->n; i++) exf_text_appendf(out, "%s%s", i ? " " : "", l->lane[i].variant.name);
    return exf_text_end(out, err);
}
