/* accumulate_record.c - include/exfold/accumulate.h: statistics of what another program's experts put out.
 *
 * An engine shows all layers of a few tokens, where a pass of ours shows one layer of all tokens: each layer has an accumulator of
 * its own (accumulate.h), without a file, which gives its sums to the file of the part.  Parts are statistics of their own; closing
 * merges them as exfold-merge does. */
#include "accumulate/accumulate_record_internal.h"

#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- opening ---------------------------------------------------------------------------------------- */

/* Returns 1 for facts that an engine can know. */
static int is_known(const char *key)
{
    static const char *const group[] = {"model.", "data.", "tokenizer.", "capture.", EXF_SETTING};
    static const char *const ours[] = {"model.weights", "model.architecture", "capture.program", "capture.version",
                                       "capture.commit", "capture.numbers", "capture.backend", "data.sequences", "data.domains",
                                       EXF_DOCUMENTS_FACT, "data.shard"};
    int is = 0;
    for (size_t i = 0; i < sizeof group / sizeof *group; i++) is |= exf_starts_with(key, group[i]);
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) is &= !exf_starts_with(key, ours[i]);
    return is && strcmp(key, "data.tokens") != 0;
}

static exf_code copy_facts(exf_record *r, const exf_record_options *o, exf_err *err)
{
    const exf_record_fact own[] = {{"capture.program", "exfold_record"}, {"capture.version", exf_release()},
                                   {"capture.commit", exf_commit()}, {"model.weights", "not verified"}};
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < o->n_facts; i++) {
        if (!is_known(o->facts[i].key))
            return exf_fail(err, EXF_USAGE, "fact %s: a recording may name model.*, data.*, tokenizer.* and capture.*, but not "
                            "what only exfold-calibrate reads itself: weights, architecture, program, the data's sums",
                            o->facts[i].key);
        exf_provenance *to = exf_starts_with(o->facts[i].key, EXF_SETTING) ? &r->settings : &r->facts;
        EXF_TRY(exf_provenance_add(to, err, o->facts[i].key, "%s", o->facts[i].value));
    }
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        EXF_TRY(exf_provenance_add(&r->facts, err, own[i].key, "%s", own[i].value));
    if (!exf_provenance_get(&r->facts, "model.family") || !exf_provenance_get(&r->facts, "model.config_sha256"))
        rc = exf_fail(err, EXF_USAGE, "%s: the facts model.family and model.config_sha256 are missing, by which tables are told "
                      "from those of other models", o->path);
out:
    return rc;
}

static exf_code check_options(const exf_record_options *o, exf_err *err)
{
    if (o->size != sizeof *o)
        return exf_fail(err, EXF_USAGE, "exf_record_options has %zu bytes, this library expects %zu: build both of one header",
                        o->size, sizeof *o);
    if (o->route_sample < 0 || o->route_sample > 1 << 24)
        return exf_fail(err, EXF_USAGE, "route_sample %lld: expected 0 to 16777216", (long long)o->route_sample);
    if (o->n_experts < 2 || o->top_k < 1 || o->top_k > o->n_experts || o->d_model < 1)
        return exf_fail(err, EXF_USAGE, "%d experts, %d per token, width %d: expected 2 or more experts, 1 to as many per token, "
                        "width 1 or more", o->n_experts, o->top_k, o->d_model);
    if (o->n_layers < 1) return exf_fail(err, EXF_USAGE, "%s: no layer is named", o->path);
    for (int i = 0; i < o->n_layers; i++)
        if (o->layers[i] < 0 || o->layers[i] >= EXF_LAYERS_LIMIT || (i && o->layers[i] <= o->layers[i - 1]))
            return exf_fail(err, EXF_USAGE, "layer %d: expected ascending numbers below %d", o->layers[i], EXF_LAYERS_LIMIT);
    if (o->weighting < 0 || o->weighting > EXF_WEIGHT_ROUTER)
        return exf_fail(err, EXF_USAGE, "weighting %d: expected 0, 1 or 2", o->weighting);
    return exf_output_check(o->path, o->replace, err);
}

uint64_t exf_record_memory(int n_layers, int n_experts)
{
    exf_run_shape shape = {n_experts, n_experts < 8 ? n_experts : 8, 1, 1, 4096};
    exf_accumulate_options o = {.route_sample = 4096};
    return (uint64_t)n_layers * exf_accumulate_memory(&shape, &o, 1, 0, 0);
}

int exf_record_open(exf_record **out, const exf_record_options *o, char *message, size_t size)
{
    exf_err e;
    exf_err *err = &e;
    exf_record *r = NULL;
    exf_code rc;
    *out = NULL;
    EXF_TRY(check_options(o, err));
    EXF_TRY(exf_mem_new(&r, 1, sizeof *r, "recording", err));
    EXF_TRY(exf_mem_strdup(&r->path, o->path, "path", err));
    EXF_TRY(exf_mem_new(&r->layer, (size_t)o->n_layers, sizeof *r->layer, "layers", err));
    r->n_layers = o->n_layers;
    for (int i = 0; i < o->n_layers; i++) {
        r->layer[i].number = o->layers[i];
        pthread_mutex_init(&r->layer[i].lock, NULL);
    }
    r->replace = o->replace;
    r->shape = (exf_run_shape){.n_experts = o->n_experts, .top_k = o->top_k, .d_model = o->d_model};
    r->options = (exf_accumulate_options){.weighting = (exf_weighting)o->weighting, .route_sample = o->route_sample};
    EXF_TRY(copy_facts(r, o, err));
    *out = r;
    r = NULL;
out:
    exf_record_free(r);
    return exf_recorded_status(rc, err, message, size);
}

/* ---- a part ----------------------------------------------------------------------------------------- */

static void free_part(recorded_part *p)
{
    exf_mem_free(p->path);
    exf_sequence_list_free(&p->sequences);
}

/* Frees the part under way. */
static void drop_part(exf_record *r)
{
    if (r->under_way) free_part(&r->part[r->n_parts]);
    for (int i = 0; i < r->n_layers; i++) {
        recorded_layer *l = &r->layer[i];
        exf_accumulator_free(l->sums);
        exf_mem_free(l->seen);
        l->sums = NULL;
        l->seen = NULL;
        l->missing = 0;
        l->failed.code = EXF_OK;
    }
    exf_provenance_free(&r->part_facts);
    exf_mem_free(r->first);
    r->first = NULL;
    r->under_way = 0;
}

/* Lists the part's sequences and the rows at which they begin; names its file. */
static exf_code list_part(exf_record *r, recorded_part *p, size_t n, const int32_t *lengths, const int32_t *ids, exf_err *err)
{
    exf_sequence_list sorted = {.n = 0};
    char digest[EXF_SHA256_HEX];
    exf_text path = {0};
    size_t row = 0;
    exf_code rc;
    EXF_TRY(exf_sequence_list_new(&p->sequences, n, err));
    EXF_TRY(exf_mem_new(&r->first, n, sizeof *r->first, "sequences", err));
    for (size_t i = 0; i < n; i++) {
        if (lengths[i] < 1) {
            rc = exf_fail(err, EXF_USAGE, "sequence %zu has %d tokens, expected 1 or more", i, (int)lengths[i]);
            goto out;
        }
        r->first[i] = row;
        p->sequences.length[i] = lengths[i];
        EXF_TRY(exf_sequence_sha256(p->sequences.sha256[i], ids + row, lengths[i], err));
        row += (size_t)lengths[i];
    }
    r->shape.n_sequences = (int64_t)n;
    r->shape.n_tokens = (int64_t)row;
    EXF_TRY(exf_sequence_list_sorted(&sorted, &p->sequences, err));
    EXF_TRY(exf_sequence_list_digest(&sorted, digest, err));
    exf_text_appendf(&path, "%s.part-%.16s", r->path, digest);
    EXF_TRY(exf_text_end(&path, err));
    EXF_TRY(exf_mem_strdup(&p->path, path.s, "path", err));
    for (size_t i = 0; i < r->n_parts; i++) {
        int64_t at;
        EXF_TRY(exf_sequence_list_shared(&p->sequences, &r->part[i].sequences, &at, err));
        if (at < 0) continue;
        rc = exf_fail(err, EXF_USAGE, "sequence %lld, of %d tokens, is in an earlier part; it would count twice", (long long)at,
                      (int)p->sequences.length[at]);
        goto out;
    }
out:
    exf_text_free(&path);
    exf_sequence_list_free(&sorted);
    return rc;
}

/* Looks whether the part is there; one with other facts or sequences is refused: closing removes it, so that its name alone is no
 * proof. */
static exf_code find_part(const exf_record *r, const recorded_part *p, int *is_there, exf_err *err)
{
    exf_statistics_reader f = {.h = NULL};
    exf_sequence_list sorted = {.n = 0};
    char own[EXF_SHA256_HEX], theirs[EXF_SHA256_HEX];
    exf_code rc;
    EXF_TRY(exf_path_look(p->path, is_there, err));
    if (!*is_there) goto out;
    EXF_TRY(exf_statistics_open(&f, p->path, err));
    for (size_t i = 0; i < r->part_facts.n; i++) {
        const char *key = r->part_facts.key[i], *value = exf_provenance_get(&f.provenance, key);
        char in_origin[128]; /* where the file keeps facts that name its text by a file (exf_facts_join) */
        if (!value && exf_starts_with(key, "data.")) {
            snprintf(in_origin, sizeof in_origin, "part.0.%s", key + strlen("data."));
            value = exf_provenance_get(&f.origin, in_origin);
        }
        if (value && strcmp(value, r->part_facts.value[i]) == 0) continue;
        rc = exf_fail(err, EXF_MODEL, "%s: was recorded with %s %s, now it is %s; delete it to record the part anew", p->path, key,
                      value ? value : "missing", r->part_facts.value[i]);
        goto out;
    }
    EXF_TRY(exf_sequence_list_sorted(&sorted, &p->sequences, err));
    EXF_TRY(exf_sequence_list_digest(&sorted, own, err));
    EXF_TRY(exf_sequence_list_digest(&f.sequences, theirs, err));
    int same = strcmp(own, theirs) == 0 && f.n_layers == r->n_layers && f.shape.n_experts == r->shape.n_experts &&
               f.shape.top_k == r->shape.top_k && f.shape.d_model == r->shape.d_model;
    for (int i = 0; same && i < r->n_layers; i++) same = f.layer_number[i] == r->layer[i].number;
    if (!same)
        rc = exf_fail(err, EXF_MODEL, "%s: has other sequences, another shape or other layers; delete it to record the part anew",
                      p->path);
out:
    exf_sequence_list_free(&sorted);
    exf_statistics_close(&f);
    return rc;
}

/* Gives a layer's sums to the file of the part. */
static exf_code put_layer(void *self, int i, const exf_layer_statistics *s, exf_err *err)
{
    recorded_layer *l = self;
    exf_code rc = exf_statistics_put(&l->of->writer, l->number, s, err);
    (void)i;
    return rc == EXF_OK ? exf_statistics_layer_done(&l->of->writer, l->number, err) : rc;
}

static exf_code tell(const recorded_layer *l, exf_moment_kind at, exf_err *err)
{
    const exf_observer *o = exf_accumulator_observer(l->sums);
    exf_progress progress = {.layer = l->number};
    exf_moment m = {.at = at, .layer = l->number, .progress = &progress};
    return exf_observer_tell(o, &m, err);
}

static exf_code begin_layer(exf_record *r, recorded_layer *l, const exf_facts_part *part, exf_err *err)
{
    exf_accumulator_plan plan = {.shape = &r->shape, .layer_number = &l->number, .n_layers = 1, .parts = part, .n_parts = 1,
                                 .options = &r->options, .consumer = {l, put_layer}, .mixed = 1};
    exf_code rc;
    l->of = r;
    l->missing = (uint64_t)r->shape.n_tokens;
    EXF_TRY(exf_mem_new(&l->seen, (size_t)r->shape.n_tokens, sizeof *l->seen, "rows", err));
    EXF_TRY(exf_accumulator_new(&l->sums, &plan, err));
    const exf_observer *o = exf_accumulator_observer(l->sums);
    EXF_TRY(o->begin(o->self, 1, NULL, err));
    rc = tell(l, EXF_AT_LAYER_BEGIN, err);
out:
    return rc;
}

int exf_record_begin(exf_record *r, size_t n, const int32_t *lengths, const int32_t *ids, const char *domains,
                     const unsigned char (*documents)[32], int *is_there, char *message, size_t size)
{
    exf_err e;
    exf_err *err = &e;
    exf_code rc;
    recorded_part part = {.path = NULL};
    *is_there = 0;
    drop_part(r);
    if (n < 1) {
        rc = exf_fail(err, EXF_USAGE, "%s: a part has no sequences", r->path);
        goto out;
    }
    EXF_TRY(exf_mem_grow(&r->part, &r->cap_parts, r->n_parts + 1, sizeof *r->part, "parts", err));
    EXF_TRY(list_part(r, &part, n, lengths, ids, err));
    if (documents) EXF_TRY(exf_mem_new(&part.sequences.document, n, sizeof *documents, "documents", err));
    if (documents) memcpy(part.sequences.document, documents, n * sizeof *documents);
    EXF_TRY(exf_provenance_copy(&r->part_facts, &r->facts, err));
    if (domains) EXF_TRY(exf_provenance_add(&r->part_facts, err, "data.domains", "%s", domains));
    EXF_TRY(find_part(r, &part, is_there, err));
    exf_facts_part facts = {.path = part.path, .provenance = &r->part_facts, .sequences = &part.sequences};
    for (int i = 0; i < r->n_layers && !*is_there; i++) EXF_TRY(begin_layer(r, &r->layer[i], &facts, err));
    r->part[r->n_parts] = part;
    part = (recorded_part){.path = NULL};
    r->under_way = !*is_there;
    r->n_parts += (size_t)*is_there;
out:
    free_part(&part);
    if (rc != EXF_OK) drop_part(r);
    return exf_recorded_status(rc, err, message, size);
}

/* ---- the end ---------------------------------------------------------------------------------------- */

/* Refuses a part with missing rows, naming the first. */
static exf_code check_complete(const exf_record *r, exf_err *err)
{
    const recorded_part *p = &r->part[r->n_parts];
    if (!r->under_way) return exf_fail(err, EXF_USAGE, "%s: no part is under way", r->path);
    for (int i = 0; i < r->n_layers; i++) {
        const recorded_layer *l = &r->layer[i];
        size_t row = 0, sequence = 0;
        if (l->failed.code != EXF_OK) {
            *err = l->failed;
            return err->code;
        }
        if (l->missing == 0) continue;
        while (l->seen[row]) row++;
        while (sequence + 1 < p->sequences.n && r->first[sequence + 1] <= row) sequence++;
        return exf_fail(err, EXF_USAGE, "layer %d: %llu of %lld rows are missing, the first is token %zu of sequence %zu",
                        (int)l->number, (unsigned long long)l->missing, (long long)r->shape.n_tokens, row - r->first[sequence],
                        sequence);
    }
    return EXF_OK;
}

static exf_code write_part(exf_record *r, exf_err *err)
{
    const recorded_part *p = &r->part[r->n_parts];
    exf_provenance own = {0}, origin = {0};
    exf_sequence_list sorted = {.n = 0};
    int32_t *numbers = NULL;
    char digest[EXF_SHA256_HEX];
    exf_facts_part part = {.path = p->path, .provenance = &r->part_facts, .sequences = &p->sequences};
    exf_code rc;
    EXF_TRY(exf_mem_new(&numbers, (size_t)r->n_layers, sizeof *numbers, "layer numbers", err));
    for (int i = 0; i < r->n_layers; i++) numbers[i] = r->layer[i].number;
    EXF_TRY(exf_sequence_list_sorted(&sorted, &p->sequences, err));
    EXF_TRY(exf_facts_join(&own, &origin, &part, 1, &sorted, 0, err));
    EXF_TRY(exf_provenance_copy(&origin, &r->settings, err));
    EXF_TRY(exf_accumulate_facts(&own, &r->options, r->shape.top_k, r->shape.d_model, err));
    exf_statistics_header head = {.shape = r->shape, .layer_number = numbers, .n_layers = r->n_layers, .sequences = &sorted,
                                  .provenance = &own, .origin = &origin};
    EXF_TRY(exf_statistics_start(&r->writer, p->path, 0, &head, err));
    for (int i = 0; i < r->n_layers; i++) {
        EXF_TRY(tell(&r->layer[i], EXF_AT_SWEEP_END, err));
        EXF_TRY(tell(&r->layer[i], EXF_AT_LAYER_END, err));
    }
    rc = exf_statistics_commit(&r->writer, digest, err);
out:
    exf_statistics_abort(&r->writer);
    exf_mem_free(numbers);
    exf_sequence_list_free(&sorted);
    exf_provenance_free(&own);
    exf_provenance_free(&origin);
    return rc;
}

int exf_record_end(exf_record *r, char *message, size_t size)
{
    exf_err e;
    exf_err *err = &e;
    exf_code rc;
    EXF_TRY(check_complete(r, err));
    rc = write_part(r, err);
    if (rc == EXF_OK) { /* the part is done, not under way */
        r->n_parts++;
        r->under_way = 0;
    }
    drop_part(r);
out:
    return exf_recorded_status(rc, err, message, size);
}

int exf_record_close(exf_record *r, char *digest, char *message, size_t size)
{
    exf_err e;
    exf_err *err = &e;
    const char **paths = NULL;
    char hex[EXF_SHA256_HEX];
    exf_code rc;
    if (r->under_way || r->n_parts == 0) {
        rc = exf_fail(err, EXF_USAGE, "%s: %s", r->path, r->under_way ? "a part is not ended" : "no part was recorded");
        goto out;
    }
    EXF_TRY(exf_mem_new(&paths, r->n_parts, sizeof *paths, "parts", err));
    for (size_t i = 0; i < r->n_parts; i++) paths[i] = r->part[i].path;
    EXF_TRY(exf_merge_statistics(paths, r->n_parts, r->path, r->replace, 0, 0, hex, err));
    if (digest) memcpy(digest, hex, sizeof hex);
    for (size_t i = 0; i < r->n_parts; i++) {
        unlink(paths[i]);
        free_part(&r->part[i]);
    }
    r->n_parts = 0;
out:
    exf_mem_free(paths);
    return exf_recorded_status(rc, err, message, size);
}

void exf_record_free(exf_record *r)
{
    if (!r) return;
    if (r->layer) drop_part(r);
    for (size_t i = 0; i < r->n_parts; i++) free_part(&r->part[i]);
    for (int i = 0; i < r->n_layers; i++) pthread_mutex_destroy(&r->layer[i].lock);
    exf_provenance_free(&r->facts);
    exf_provenance_free(&r->settings);
    exf_mem_free(r->part);
    exf_mem_free(r->layer);
    exf_mem_free(r->path);
    exf_mem_free(r);
}
