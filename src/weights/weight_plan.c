/* weight_plan.c - which bytes of the checkpoint go where, and when; see weight_plan.h. */
#include "weights/weight_plan.h"

#include "base/hash.h"
#include "base/mem.h"

#include <string.h>

enum { ALIGN = 256 };

void exf_layer_weights_free(exf_layer_weights *lw)
{
    for (int role = 0; lw->b && role < EXF_W_COUNT; role++) lw->b->free(lw->held[role]);
    memset(lw, 0, sizeof *lw);
}

size_t exf_layer_weights_size(const exf_model *m)
{
    size_t total = 0;
    for (int role = EXF_W_FIRST_IN_LAYER; role < EXF_W_COUNT; role++) {
        size_t most = 0;
        for (int l = 0; l < m->arch.n_layers; l++) {
            size_t n = (size_t)exf_model_copies(m, (exf_role)role, l) * exf_model_count(m, (exf_role)role, l);
            most = n > most ? n : most;
        }
        total += most;
    }
    return total;
}

/* ---- a plan ------------------------------------------------------------------------------------------- */

/* Returns 1 for a role whose matrix only products read; 0 for the router's, which stays float32. */
static int is_product(exf_role role)
{
    static const unsigned char product[EXF_W_COUNT] = {
        [EXF_W_HEAD] = 1, [EXF_W_DENSE_GATE] = 1, [EXF_W_DENSE_UP] = 1, [EXF_W_DENSE_DOWN] = 1, [EXF_W_EXPERT_GATE] = 1,
        [EXF_W_EXPERT_UP] = 1, [EXF_W_EXPERT_DOWN] = 1, [EXF_W_SHARED_GATE] = 1, [EXF_W_SHARED_UP] = 1, [EXF_W_SHARED_DOWN] = 1,
        [EXF_W_Q] = 1, [EXF_W_K] = 1, [EXF_W_V] = 1, [EXF_W_O] = 1, [EXF_W_Q_A] = 1, [EXF_W_Q_B] = 1, [EXF_W_KV_A] = 1,
        [EXF_W_KV_B] = 1, [EXF_W_DELTA_QKV] = 1, [EXF_W_DELTA_Z] = 1, [EXF_W_DELTA_B] = 1, [EXF_W_DELTA_A] = 1,
        [EXF_W_DELTA_OUT] = 1, [EXF_W_KV] = 1, [EXF_W_O_A] = 1, [EXF_W_O_B] = 1, [EXF_W_COMPRESS_KV] = 1,
        [EXF_W_COMPRESS_GATE] = 1, [EXF_W_INDEX_Q] = 1, [EXF_W_INDEX_WEIGHTS] = 1, [EXF_W_INDEX_KV] = 1, [EXF_W_INDEX_GATE] = 1,
    };
    return product[role];
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

/* Returns 1 if a role belongs to the part. */
static int is_of(exf_role role, const exf_weight_part *of)
{
    if (of->layer == EXF_LAYER_EMBED) return role == EXF_W_EMBED;
    if (of->layer == EXF_LAYER_HEAD) return (int)role < EXF_W_FIRST_IN_LAYER && role != EXF_W_EMBED;
    if ((int)role < EXF_W_FIRST_IN_LAYER) return 0;
    int is_routed = role >= EXF_W_EXPERT_GATE && role <= EXF_W_EXPERT_DOWN_BIAS;
    return of->choice == EXF_WEIGHTS_ALL || is_routed == (of->choice == EXF_WEIGHTS_EXPERTS);
}

/* Returns the layer number of src/model, where -1 is all that is outside the layers. */
static int layer_of(const exf_weight_part *of)
{
    return of->layer < 0 ? -1 : of->layer;
}

static int copies_of(const exf_model *m, exf_role role, const exf_weight_part *of)
{
    int copies = exf_model_copies(m, role, layer_of(of));
    return of->choice == EXF_WEIGHTS_EXPERTS && copies > 0 ? of->n : copies;
}

/* Returns 1 if bfloat16 can hold a role's tensors exactly; all three matrices of a SwiGLU must fit, since they share one number
 * type. */
static int fits_bf16(const exf_model *m, exf_role role, int layer)
{
    static const exf_role swiglu[][3] = {{EXF_W_EXPERT_GATE, EXF_W_EXPERT_UP, EXF_W_EXPERT_DOWN},
                                         {EXF_W_SHARED_GATE, EXF_W_SHARED_UP, EXF_W_SHARED_DOWN},
                                         {EXF_W_DENSE_GATE, EXF_W_DENSE_UP, EXF_W_DENSE_DOWN}};
    for (size_t i = 0; i < sizeof swiglu / sizeof *swiglu; i++) {
        const exf_role *of = swiglu[i];
        if (role == of[0] || role == of[1] || role == of[2])
            return exf_model_fits_bf16(m, of[0], layer) && exf_model_fits_bf16(m, of[1], layer) &&
                   exf_model_fits_bf16(m, of[2], layer);
    }
    return exf_model_fits_bf16(m, role, layer);
}

/* Returns the number type in a slot.  Matrices of products are bfloat16 if products round, or if no
 * precision is lost.  The embedding is too, which halves the bytes to copy. */
static exf_number number_of(const exf_model *m, exf_compute compute, exf_role role, const exf_weight_part *of)
{
    if (!is_product(role) && role != EXF_W_EMBED) return EXF_NUMBER_F32;
    return compute == EXF_COMPUTE_BF16 || fits_bf16(m, role, layer_of(of)) ? EXF_NUMBER_BF16 : EXF_NUMBER_F32;
}

size_t exf_weight_plan_elements(const exf_model *m, exf_role role, const exf_weight_part *of)
{
    return (size_t)copies_of(m, role, of) * exf_model_count(m, role, layer_of(of));
}

/* Returns the bytes of the doubled router matrix, whether or not it will be used. */
static size_t split_bytes(const exf_model *m, exf_compute compute, const exf_weight_part *of)
{
    int has = compute == EXF_COMPUTE_BF16 && of->layer >= 0 && of->choice != EXF_WEIGHTS_EXPERTS;
    return has ? aligned(4 * exf_model_count(m, EXF_W_ROUTER, of->layer)) : 0;
}

int exf_chunk_copied_as_stored(const exf_weight_chunk *p)
{
    const exf_weight_source *w = &p->at.w;
    return p->raw && w->coding == EXF_CODED_PLAIN && exf_weight_source_dtype(w) == EXF_DT_BF16 && p->number == EXF_NUMBER_BF16;
}

size_t exf_chunk_stored_bytes(const exf_weight_chunk *p, exf_stored_kind kind)
{
    return exf_weight_source_stored_bytes(&p->at.w, kind, p->at.row + p->row, p->n_rows, p->at.cols);
}

size_t exf_chunk_room(const exf_weight_chunk *p)
{
    return exf_weight_source_room(&p->at.w, p->at.row + p->row, p->n_rows, p->at.cols);
}

size_t exf_device_offset(const exf_weight_chunk *p, exf_stored_kind kind)
{
    size_t at = 0;
    for (int k = 0; k < (int)kind; k++) at += aligned(exf_chunk_stored_bytes(p, (exf_stored_kind)k));
    return at;
}

/* Bytes of the largest chunk, as stored without its scales, and as float32 where the host decodes it for products. */
typedef struct {
    size_t codes, floats;
} chunk_bytes;

/* Adds what a role's matrices ask for: of AWQ's, of GPTQ's and of experts' that are stored as columns, a chunk is a whole one. */
static void add_matrix(chunk_bytes *most, const exf_model *m, exf_role role, int layer)
{
    int packed = m->quantization.quantizer == EXF_QUANTIZER_AWQ || m->quantization.quantizer == EXF_QUANTIZER_GPTQ;
    size_t n = exf_model_count(m, role, layer), codes = packed ? n / 2 : 0, floats = 0;
    const exf_tensor_rule *rule = exf_model_rule(m, role, layer);
    unsigned how = rule ? rule->how : 0;
    if (how & EXF_REARRANGED) floats = EXF_WEIGHT_CHUNK_BYTES;
    if (how & EXF_TRANSPOSED) {
        codes = n * (size_t)exf_roles_read_together(how) * (exf_model_fits_bf16(m, role, layer) ? 2 : sizeof(float));
        floats = n * sizeof(float);
    }
    most->codes = codes > most->codes ? codes : most->codes;
    most->floats = floats > most->floats ? floats : most->floats;
}

void exf_weight_most_bytes(const exf_model *m, size_t *room, size_t *device)
{
    chunk_bytes most = {.codes = EXF_WEIGHT_CHUNK_BYTES};
    for (int l = -1; l < m->arch.n_layers; l++)
        for (int role = 0; role < EXF_W_COUNT; role++)
            if (is_product((exf_role)role)) add_matrix(&most, m, (exf_role)role, l);
    /* Scales of groups of 16 columns and more, zeros and group numbers are at most a quarter of their codes. */
    *room = most.codes + most.codes / 4 + 3 * EXF_STORED_KINDS * (size_t)EXF_FILE_ALIGN + most.floats;
    size_t codes = most.floats ? EXF_WEIGHT_CHUNK_BYTES : most.codes;
    codes += codes / 4 + EXF_STORED_KINDS * (size_t)ALIGN;
    *device = codes > most.floats ? codes : most.floats;
}

static exf_code add_chunk(exf_weight_plan *p, const exf_weight_chunk *chunk, exf_err *err)
{
    size_t host, device = 0;
    exf_code rc = exf_mem_grow(&p->chunk, &p->capacity, p->n + 1, sizeof *p->chunk, "weight chunks", err);
    if (rc != EXF_OK) return rc;
    p->chunk[p->n++] = *chunk;
    host = exf_chunk_room(chunk);
    if (chunk->raw)
        device = exf_device_offset(chunk, EXF_STORED_KINDS);
    else
        host += chunk->n_rows * chunk->at.cols * sizeof(float);
    if (!chunk->raw && chunk->number == EXF_NUMBER_BF16) device = chunk->n_rows * chunk->at.cols * sizeof(float);
    p->most_host = host > p->most_host ? host : p->most_host;
    p->most_device = device > p->most_device ? device : p->most_device;
    return EXF_OK;
}

/* Adds one tensor in chunks of rows. */
static exf_code add_tensor(exf_weight_plan *p, const exf_model *m, exf_compute compute, exf_role role, int expert, size_t to,
                           exf_err *err)
{
    exf_weight_chunk chunk = {.role = role, .expert = expert, .number = p->number[role], .to = to};
    exf_code rc;
    EXF_TRY(exf_model_locate(m, role, layer_of(&p->of), expert, &chunk.at, err));
    chunk.raw = (is_product(role) || role == EXF_W_EMBED) && !(chunk.at.w.how & (EXF_PLUS_ONE | EXF_INTEGER | EXF_REARRANGED));
    if (role == EXF_W_ROUTER && compute == EXF_COMPUTE_BF16 && exf_weight_source_dtype(&chunk.at.w) == EXF_DT_BF16) p->split = 1;
    size_t step = exf_weight_piece_rows(&chunk.at.w, chunk.at.cols), width = chunk.at.cols * exf_number_bytes(chunk.number);
    for (size_t row = 0; row < chunk.at.rows; row += step) {
        chunk.row = row;
        chunk.n_rows = chunk.at.rows - row < step ? chunk.at.rows - row : step;
        chunk.to = to + row * width;
        EXF_TRY(add_chunk(p, &chunk, err));
    }
out:
    return rc;
}

/* Makes the plan of a part in *p, which is zero. */
static exf_code make_plan(exf_weight_plan *p, const exf_model *m, exf_compute compute, const exf_weight_part *of, exf_err *err)
{
    exf_code rc = EXF_OK;
    size_t at = 0;
    int first = of->choice == EXF_WEIGHTS_EXPERTS ? of->first : 0;
    p->of = *of;
    for (int role = 0; role < EXF_W_COUNT; role++) {
        int copies = is_of((exf_role)role, of) ? copies_of(m, (exf_role)role, of) : 0;
        if (copies == 0) continue;
        p->present[role] = 1;
        p->first[role] = at;
        p->number[role] = number_of(m, compute, (exf_role)role, of);
        size_t bytes = exf_weight_plan_elements(m, (exf_role)role, of) * exf_number_bytes(p->number[role]);
        for (int e = 0; e < copies; e++)
            EXF_TRY(add_tensor(p, m, compute, (exf_role)role, first + e, at + bytes / (size_t)copies * (size_t)e, err));
        at += aligned(bytes);
    }
    if (p->split) {
        p->split = at;
        at += split_bytes(m, compute, of);
    }
out:
    return rc;
}

void exf_weight_plan_point(exf_layer_weights *lw, const exf_weight_plan *p, char *slot)
{
    if (p->of.choice != EXF_WEIGHTS_EXPERTS) {
        memset(lw->w, 0, sizeof lw->w);
        memset(lw->w16, 0, sizeof lw->w16);
        lw->router_split = p->split ? (uint16_t *)(void *)(slot + p->split) : NULL;
    }
    for (int role = 0; role < EXF_W_COUNT; role++) {
        void *at = slot + p->first[role];
        if (!p->present[role]) continue;
        if (p->number[role] == EXF_NUMBER_BF16)
            lw->w16[role] = at;
        else
            lw->w[role] = at;
    }
}

/* ---- a schedule ---------------------------------------------------------------------------------------- */

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
    rc = make_plan(&t->plan[t->n_plans++], k->m, k->compute, of, err);
out:
    return rc;
}

static exf_code add_load(schedule_builder *k, size_t plan, int area, int early, exf_err *err)
{
    exf_weight_schedule *t = k->t;
    exf_code rc = exf_mem_grow(&t->load, &t->capacity, t->n + 1, sizeof *t->load, "weight loads", err);
    if (rc == EXF_OK) t->load[t->n++] = (exf_weight_load){plan, area, early};
    return rc;
}

/* Adds a layer in parts.  Its other tensors stay until the layer is done, so their load never begins
 * early; the first part may, and with two slots every part may. */
static exf_code add_in_parts(schedule_builder *k, int layer, exf_err *err)
{
    exf_code rc;
    int n_experts = layer >= 0 && k->m->arch.is_moe[layer] ? k->m->arch.n_experts : 0, step = k->o->part_experts;
    EXF_TRY(add_plan(k, &(exf_weight_part){.layer = layer, .choice = EXF_WEIGHTS_NON_EXPERT}, err));
    EXF_TRY(add_load(k, k->t->n_plans - 1, 0, 0, err));
    size_t first = k->t->n_plans;
    for (int e = 0; e < n_experts; e += step)
        EXF_TRY(add_plan(k, &(exf_weight_part){layer, EXF_WEIGHTS_EXPERTS, e, n_experts - e < step ? n_experts - e : step}, err));
    for (int pass = 0; pass < k->o->passes; pass++)
        for (size_t plan = first; plan < k->t->n_plans; plan++) {
            int early = k->o->n_slots > 1 || (pass == 0 && plan == first);
            EXF_TRY(add_load(k, plan, 1 + k->parts++ % k->o->n_slots, early, err));
        }
out:
    return rc;
}

/* Returns 1 if the schedule has the layer, the embedding or the head. */
static int has_layer(const exf_weight_loader_options *o, int layer)
{
    if (layer == EXF_LAYER_HEAD) return o->head;
    return !o->first_layer || layer >= o->first_layer;
}

exf_code exf_weight_schedule_make(exf_weight_schedule *t, const exf_model *m, exf_compute compute,
                                  const exf_weight_loader_options *o, exf_err *err)
{
    schedule_builder k = {t, m, compute, o, 0};
    int n = o->n_layers + 2;
    exf_code rc = EXF_OK;
    for (int i = 0; i < n; i++) {
        int layer = i == 0 ? EXF_LAYER_EMBED : i <= o->n_layers ? i - 1 : EXF_LAYER_HEAD;
        if (!has_layer(o, layer)) continue;
        if (o->part_experts) {
            EXF_TRY(add_in_parts(&k, layer, err));
            continue;
        }
        EXF_TRY(add_plan(&k, &(exf_weight_part){.layer = layer}, err));
        EXF_TRY(add_load(&k, t->n_plans - 1, (int)(t->n % (size_t)o->n_slots), o->n_slots > 1, err));
    }
out:
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
        for (size_t k = 0; k < p->n; k++) {
            const exf_weight_chunk *c = &p->chunk[k];
            const uint64_t facts[] = {(uint64_t)p->of.layer, c->role, (uint64_t)c->expert, (uint64_t)c->raw, c->row, c->n_rows};
            for (size_t f = 0; f < sizeof facts / sizeof *facts; f++) EXF_TRY(exf_hash_add_u64(h, facts[f], err));
        }
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
    for (size_t i = 0; i < t->n_plans; i++) exf_mem_free(t->plan[i].chunk);
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

/* ---- sizes ----------------------------------------------------------------------------------------- */

/* Returns the most bytes that a choice of any layer, the embedding or the head needs. */
static size_t most_bytes(const exf_model *m, exf_compute compute, const exf_weight_loader_options *o, exf_weight_choice choice)
{
    size_t most = 0;
    for (int l = EXF_LAYER_EMBED; l < o->n_layers; l++) {
        int none = choice == EXF_WEIGHTS_EXPERTS && (l < 0 || !m->arch.is_moe[l]);
        if (none || !has_layer(o, l)) continue;
        const exf_weight_part of = {l, choice, 0, o->part_experts};
        size_t bytes = split_bytes(m, compute, &of);
        for (int role = 0; role < EXF_W_COUNT; role++)
            if (is_of((exf_role)role, &of))
                bytes += aligned(exf_weight_plan_elements(m, (exf_role)role, &of) *
                                 exf_number_bytes(number_of(m, compute, (exf_role)role, &of)));
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
