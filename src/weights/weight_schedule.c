/* weight_schedule.c - see weight_schedule.h, and weight_loader.h for the sizes. */
#include "weights/weight_schedule.h"

#include "base/hash.h"
#include "base/mem.h"

#include <string.h>

enum { ALIGN = 256 };

/* State of making a schedule. */
typedef struct {
    exf_weight_schedule *t;
    const exf_model *m;
    exf_compute compute;
    const exf_weight_loader_options *o;
    int parts; /* parts so far: they use the slots in turn */
} schedule_builder;

static exf_code add_plan(schedule_builder *k, const exf_weight_part *of, exf_err *err)
{
    exf_weight_schedule *t = k->t;
    exf_code rc;
    EXF_TRY(exf_mem_grow(&t->plan, &t->plan_capacity, t->n_plans + 1, sizeof *t->plan, "weight plans", err));
    memset(&t->plan[t->n_plans], 0, sizeof *t->plan);
    rc = exf_weight_plan_make(&t->plan[t->n_plans++], k->m, k->compute, of, err);
out:
    return rc;
}

static exf_code add_turn(schedule_builder *k, size_t plan, int area, int early, exf_err *err)
{
    exf_weight_schedule *t = k->t;
    exf_code rc = exf_mem_grow(&t->load, &t->capacity, t->n + 1, sizeof *t->load, "weight loads", err);
    if (rc == EXF_OK) t->load[t->n++] = (exf_weight_load){plan, area, early};
    return rc;
}

static exf_code add_whole(schedule_builder *k, int layer, exf_err *err)
{
    exf_code rc;
    int n_slots = k->o->n_slots;
    EXF_TRY(add_plan(k, &(exf_weight_part){.layer = layer}, err));
    EXF_TRY(add_turn(k, k->t->n_plans - 1, (int)(k->t->n % (size_t)n_slots), n_slots > 1, err));
out:
    return rc;
}

/* Adds a layer in parts.  Its other tensors stay until the layer is done, so their load never begins
 * early; the first part may, and with two slots every part may. */
static exf_code add_in_parts(schedule_builder *k, int layer, exf_err *err)
{
    exf_code rc;
    int n_experts = layer >= 0 && k->m->arch.is_moe[layer] ? k->m->arch.n_experts : 0, step = k->o->part_experts;
    EXF_TRY(add_plan(k, &(exf_weight_part){.layer = layer, .choice = EXF_WEIGHTS_NON_EXPERT}, err));
    EXF_TRY(add_turn(k, k->t->n_plans - 1, 0, 0, err));
    size_t first = k->t->n_plans;
    for (int e = 0; e < n_experts; e += step)
        EXF_TRY(add_plan(k, &(exf_weight_part){layer, EXF_WEIGHTS_EXPERTS, e, n_experts - e < step ? n_experts - e : step}, err));
    for (int pass = 0; pass < k->o->passes; pass++)
        for (size_t plan = first; plan < k->t->n_plans; plan++) {
            int early = k->o->n_slots > 1 || (pass == 0 && plan == first);
            EXF_TRY(add_turn(k, plan, 1 + k->parts++ % k->o->n_slots, early, err));
        }
out:
    return rc;
}

/* Returns 1 if the schedule has the layer, the embedding or the head. */
static int brings(const exf_weight_loader_options *o, int layer)
{
    if (layer == EXF_LAYER_HEAD) return o->head;
    if (o->first_layer && layer < o->first_layer) return 0;
    return !o->chosen || (layer >= 0 && o->chosen[layer]);
}

exf_code exf_weight_schedule_make(exf_weight_schedule *t, const exf_model *m, exf_compute compute,
                                  const exf_weight_loader_options *o, exf_err *err)
{
    schedule_builder k = {t, m, compute, o, 0};
    int n = o->n_layers + 2;
    exf_code rc = EXF_OK;
    for (int i = 0; rc == EXF_OK && i < n; i++) {
        int layer = i == 0 ? EXF_LAYER_EMBED : i <= o->n_layers ? i - 1 : EXF_LAYER_HEAD;
        if (!brings(o, layer)) continue;
        rc = o->part_experts ? add_in_parts(&k, layer, err) : add_whole(&k, layer, err);
    }
    return rc;
}

static exf_code hash_chunk(exf_hash *h, const exf_weight_part *of, const exf_weight_chunk *c, exf_err *err)
{
    const uint64_t facts[] = {(uint64_t)of->layer, c->role, (uint64_t)c->expert, (uint64_t)c->raw, c->row, c->n_rows};
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < sizeof facts / sizeof *facts; i++) rc = exf_hash_add_u64(h, facts[i], err);
    return rc;
}

exf_code exf_weight_schedule_digest(const exf_weight_schedule *t, char hex[EXF_SHA256_HEX], size_t *n_chunks, exf_err *err)
{
    exf_hash *h = NULL;
    exf_code rc;
    *n_chunks = 0;
    EXF_TRY(exf_hash_new(&h, err));
    for (size_t i = 0; i < t->n; i++) {
        const exf_weight_plan *p = &t->plan[t->load[i].plan];
        for (size_t k = 0; k < p->n; k++) EXF_TRY(hash_chunk(h, &p->of, &p->chunk[k], err));
        *n_chunks += p->n;
    }
    rc = exf_hash_end(h, hex, err);
    h = NULL;
out:
    exf_hash_free(h);
    return rc;
}

void exf_weight_schedule_free(exf_weight_schedule *t)
{
    for (size_t i = 0; i < t->n_plans; i++) exf_weight_plan_free(&t->plan[i]);
    exf_mem_free(t->plan);
    exf_mem_free(t->load);
    memset(t, 0, sizeof *t);
}

void exf_weight_schedule_most(const exf_weight_schedule *t, size_t *host, size_t *device)
{
    *host = *device = ALIGN;
    for (size_t i = 0; i < t->n_plans; i++) {
        *host = t->plan[i].most_host > *host ? t->plan[i].most_host : *host;
        *device = t->plan[i].most_device > *device ? t->plan[i].most_device : *device;
    }
}

/* ---- sizes ------------------------------------------------------------------------- */

/* Returns the most bytes that a choice of any layer, the embedding or the head needs. */
static size_t most_bytes(const exf_model *m, exf_compute compute, const exf_weight_loader_options *o, exf_weight_choice choice)
{
    size_t most = 0;
    for (int l = EXF_LAYER_EMBED; l < o->n_layers; l++) {
        int none = choice == EXF_WEIGHTS_EXPERTS && (l < 0 || !m->arch.is_moe[l]);
        if (none || !brings(o, l)) continue;
        size_t bytes = exf_weight_plan_bytes(m, compute, &(exf_weight_part){l, choice, 0, o->part_experts});
        most = bytes > most ? bytes : most;
    }
    return most;
}

size_t exf_weight_loader_slot_bytes(const exf_model *m, exf_compute compute, const exf_weight_loader_options *o)
{
    return most_bytes(m, compute, o, o->part_experts ? EXF_WEIGHTS_EXPERTS : EXF_WEIGHTS_ALL);
}

size_t exf_weight_loader_base_bytes(const exf_model *m, exf_compute compute, const exf_weight_loader_options *o)
{
    return o->part_experts ? most_bytes(m, compute, o, EXF_WEIGHTS_NON_EXPERT) : 0;
}
