/* capture.c - which layers and tokens a pass is over, and the facts that say so; see capture.h. */
#include "capture/capture.h"

#include "artifact/provenance.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)EXF_LAYERS_LIMIT == (int)EXF_MAX_LAYERS, "a file holds the layers of any model");

/* Reads one "a" or "a-b" of the list, up to a comma or the end. */
static exf_code choose_range(exf_layer_choice *c, const char *whole, const char **text, const exf_architecture *a, exf_err *err)
{
    char *end;
    long first = strtol(*text, &end, 10), last = first;
    if (end == *text || first < 0) return exf_fail(err, EXF_USAGE, "--layers: \"%s\" does not start with a layer number", *text);
    if (*end == '-') {
        const char *from = end + 1;
        last = strtol(from, &end, 10);
        if (end == from || last < first) return exf_fail(err, EXF_USAGE, "--layers: \"%s\" is no range of layers", *text);
    }
    if (*end && *end != ',') return exf_fail(err, EXF_USAGE, "--layers: \"%s\" is neither \"all\" nor a list like 0,3,8-11", *text);
    for (long l = first; l <= last; l++) {
        if (l >= a->n_layers) return exf_fail(err, EXF_USAGE, "--layers: layer %ld, the model has %d", l, a->n_layers);
        if (!a->is_moe[l]) return exf_fail(err, EXF_USAGE, "--layers: layer %ld is dense, it has no experts", l);
        if (c->chosen[l]) return exf_fail(err, EXF_USAGE, "--layers: \"%s\" names layer %ld twice", whole, l);
        c->chosen[l] = 1;
    }
    if (*end == ',' && !end[1]) return exf_fail(err, EXF_USAGE, "--layers: \"%s\" ends with a comma", *text);
    *text = *end ? end + 1 : end;
    return EXF_OK;
}

exf_code exf_layer_choice_parse(exf_layer_choice *c, const char *text, const exf_architecture *a, exf_err *err)
{
    memset(c, 0, sizeof *c);
    if (strcmp(text, "all") == 0) {
        memcpy(c->chosen, a->is_moe, sizeof c->chosen);
    } else {
        if (!*text) return exf_fail(err, EXF_USAGE, "--layers: names no layer");
        for (const char *at = text; *at;) {
            exf_code rc = choose_range(c, text, &at, a, err);
            if (rc != EXF_OK) return rc;
        }
    }
    for (int l = 0; l < EXF_MAX_LAYERS; l++)
        if (c->chosen[l]) c->number[c->n++] = c->last = l;
    return EXF_OK;
}

exf_code exf_batch_of_corpus(exf_batch *batch, const exf_corpus *c, exf_err *err)
{
    exf_span *span = NULL;
    exf_code rc = exf_mem_new(&span, c->n_sequences, sizeof *span, "sequences", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < c->n_sequences; i++) span[i] = (exf_span){c->sequence[i].offset, c->sequence[i].n_tokens};
    *batch = (exf_batch){c->ids, span, c->n_sequences, (size_t)c->n_tokens, c->max_tokens};
    return EXF_OK;
}

/* Lists the sketches of a corpus' documents; those without words are like no other. */
static exf_code add_sketches(exf_sketch_set *s, const exf_corpus *c, exf_err *err)
{
    unsigned char (*all)[EXF_SKETCH_BYTES] = NULL;
    size_t n = 0;
    exf_code rc = exf_mem_new(&all, c->n_sequences, sizeof *all, "sketches of documents", err);
    for (size_t i = 0; rc == EXF_OK && i < c->n_sequences; i++) {
        size_t at = c->sequence[i].sketch;
        if ((i == 0 || at != c->sequence[i - 1].sketch) && !c->sketch[at].empty) exf_sketch_pack(all[n++], &c->sketch[at]);
    }
    if (rc == EXF_OK) rc = exf_sketch_set_add(s, (const unsigned char (*)[EXF_SKETCH_BYTES])all, n, err);
    exf_mem_free(all);
    return rc;
}

exf_code exf_sequences_of_batch(exf_sequence_list *s, const exf_batch *batch, const exf_corpus *corpus, exf_err *err)
{
    exf_code rc = exf_sequence_list_new(s, batch->n_sequences, err);
    if (rc == EXF_OK && corpus) rc = exf_mem_new(&s->document, s->n, sizeof *s->document, "documents", err);
    for (size_t i = 0; rc == EXF_OK && corpus && i < s->n; i++)
        memcpy(s->document[i], corpus->sequence[i].group_sha256, sizeof *s->document);
    if (rc == EXF_OK && corpus) rc = add_sketches(&s->sketches, corpus, err);
    for (size_t i = 0; rc == EXF_OK && i < s->n; i++) {
        const exf_span *span = &batch->span[i];
        s->length[i] = span->n_tokens;
        rc = exf_sequence_sha256(s->sha256[i], batch->ids + span->offset, span->n_tokens, err);
    }
    if (rc != EXF_OK) exf_sequence_list_free(s);
    return rc;
}

void exf_run_shape_of(exf_run_shape *s, const exf_model *m, const exf_corpus *c)
{
    *s = (exf_run_shape){m->arch.n_experts, m->arch.top_k, m->arch.d_model, (int64_t)c->n_sequences, (int64_t)c->n_tokens};
}

/* Adds the digests of the routers of all MoE layers, which a runtime compares with those that it loads. */
static exf_code add_routers(exf_provenance *p, const exf_model *m, exf_err *err)
{
    exf_text list = {0};
    float *router = NULL;
    char hex[EXF_SHA256_HEX];
    exf_code rc = EXF_OK;
    for (int l = 0; l < m->arch.n_layers; l++) {
        size_t n = m->arch.is_moe[l] ? exf_model_count(m, EXF_W_ROUTER, l) : 0;
        if (n == 0) continue;
        if (!router) EXF_TRY(exf_mem_new(&router, n, sizeof *router, "a router", err));
        EXF_TRY(exf_model_read(m, EXF_W_ROUTER, l, 0, router, err));
        EXF_TRY(exf_hash_bytes(router, n * sizeof *router, hex, err));
        exf_text_appendf(&list, "%s%d:%s", list.len ? " " : "", l, hex);
    }
    EXF_TRY(exf_text_end(&list, err));
    if (list.s) rc = exf_provenance_add(p, err, EXF_ROUTERS_FACT, "%s", list.s);
out:
    exf_mem_free(router);
    exf_text_free(&list);
    return rc;
}

exf_code exf_capture_weights_facts(exf_provenance *p, const exf_model *m, exf_err *err)
{
    exf_text parts = {0}, by_place = {0};
    exf_code rc = EXF_OK;
    if (!m->identity) return EXF_OK;
    EXF_TRY(exf_weight_identity_list(m->identity, 0, &parts, err));
    EXF_TRY(exf_weight_identity_list(m->identity, 1, &by_place, err));
    if (!parts.s) goto out;
    EXF_TRY(exf_weights_facts_add(p, parts.s, by_place.s, err));
    EXF_TRY(add_routers(p, m, err));
out:
    exf_text_free(&parts);
    exf_text_free(&by_place);
    return rc;
}

exf_code exf_capture_file_facts(exf_provenance *p, const exf_model *m, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < m->checkpoint->n_files; i++) {
        exf_text key = {0};
        exf_text_appendf(&key, "model.file.%s", exf_path_name(exf_st_path(m->checkpoint->file[i])));
        rc = exf_text_end(&key, err);
        if (rc == EXF_OK) rc = exf_provenance_add(p, err, key.s, "%s", exf_file_state(m->checkpoint->file[i]->file));
        exf_text_free(&key);
    }
    return rc;
}

exf_code exf_capture_stage_facts(exf_provenance *p, const exf_model *m, const exf_backend *backend, exf_compute compute,
                                 const char *layers, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_forward_facts_add(p, &m->arch, err));
    EXF_TRY(exf_provenance_add(p, err, "model.family", "%s", m->family->name));
    EXF_TRY(exf_provenance_add(p, err, "model.config_sha256", "%s", m->config_sha256));
    EXF_TRY(exf_provenance_add(p, err, "model.layers", "%d", m->arch.n_layers));
    EXF_TRY(exf_provenance_add(p, err, "capture.program", "exfold-capture"));
    EXF_TRY(exf_provenance_add(p, err, "capture.version", "%s", exf_release()));
    EXF_TRY(exf_provenance_add(p, err, "capture.commit", "%s", exf_commit()));
    EXF_TRY(exf_provenance_add(p, err, EXF_CAPTURE_NUMBERS_FACT, "%d", EXF_CAPTURE_NUMBERS));
    EXF_TRY(exf_provenance_add(p, err, "capture.layers", "%s", layers));
    EXF_TRY(exf_provenance_add(p, err, "capture.backend", "%s", backend->name));
    EXF_TRY(exf_provenance_add(p, err, "capture.compute", "%s", exf_compute_name(compute)));
    EXF_TRY(exf_provenance_add(p, err, "capture.device", "%s", backend->device()));
out:
    return rc;
}

exf_code exf_capture_data_facts(exf_provenance *p, const exf_corpus *c, const exf_corpus_request *request, exf_err *err)
{
    exf_code rc;
    exf_text domains = {0};
    for (size_t i = 0; i < c->n_domains; i++)
        exf_text_appendf(&domains, "%s%s: %llu sequences, %llu tokens", i ? "; " : "", c->domains[i].name,
                         (unsigned long long)c->domains[i].sequences_kept, (unsigned long long)c->domains[i].tokens_kept);
    EXF_TRY(exf_text_end(&domains, err));
    EXF_TRY(exf_provenance_add(p, err, "data.manifest_sha256", "%s", c->manifest_sha256));
    if (c->tokenizer_sha256[0]) {
        EXF_TRY(exf_provenance_add(p, err, "tokenizer.sha256", "%s", c->tokenizer_sha256));
        EXF_TRY(exf_provenance_add(p, err, "tokenizer.bos", "%s", c->tokenizer_bos));
        EXF_TRY(exf_provenance_add(p, err, "tokenizer.unicode", "%s", exf_unicode_version));
    }
    EXF_TRY(exf_provenance_add(p, err, "data.tokens_digest", "%s", c->tokens_digest));
    if (c->shard[0]) EXF_TRY(exf_provenance_add(p, err, "data.shard", "%s", c->shard));
    EXF_TRY(exf_provenance_add(p, err, "data.sequences", "%zu", c->n_sequences));
    EXF_TRY(exf_provenance_add(p, err, "data.tokens", "%llu", (unsigned long long)c->n_tokens));
    EXF_TRY(exf_provenance_add(p, err, "data.max_tokens", "%lld", (long long)request->max_tokens));
    EXF_TRY(exf_provenance_add(p, err, "data.min_tokens", "%lld", (long long)request->min_tokens));
    EXF_TRY(exf_provenance_add(p, err, "data.seed", "%llu", (unsigned long long)request->seed));
    EXF_TRY(exf_provenance_add(p, err, "data.domains", "%s", domains.s ? domains.s : ""));
out:
    exf_text_free(&domains);
    return rc;
}

exf_code exf_capture_provenance(exf_provenance *p, const exf_model *m, const exf_corpus *c, const exf_corpus_request *request,
                                const exf_backend *backend, exf_compute compute, const char *layers, exf_err *err)
{
    exf_code rc = exf_capture_data_facts(p, c, request, err);
    return rc == EXF_OK ? exf_capture_stage_facts(p, m, backend, compute, layers, err) : rc;
}

exf_code exf_capture_write_ids(const char *target, int force, const exf_corpus *c, const exf_corpus_request *request,
                               const exf_provenance *settings, exf_err *err)
{
    exf_provenance facts = {0};
    exf_st_meta *meta = NULL;
    exf_text *keys = NULL;
    int32_t *lengths = NULL, *domains = NULL;
    unsigned char (*documents)[32] = NULL;
    size_t n = c->n_sequences, n_meta = 0;
    exf_code rc;
    EXF_TRY(exf_capture_data_facts(&facts, c, request, err));
    EXF_TRY(exf_provenance_copy(&facts, settings, err));
    EXF_TRY(exf_mem_new(&meta, facts.n + c->n_domains, sizeof *meta, "facts", err));
    EXF_TRY(exf_mem_new(&keys, c->n_domains, sizeof *keys, "facts", err));
    EXF_TRY(exf_mem_new(&lengths, n, sizeof *lengths, "sequences", err));
    EXF_TRY(exf_mem_new(&domains, n, sizeof *domains, "sequences", err));
    EXF_TRY(exf_mem_new(&documents, n, sizeof *documents, "sequences", err));
    for (; n_meta < facts.n; n_meta++) meta[n_meta] = (exf_st_meta){facts.key[n_meta], facts.value[n_meta]};
    for (size_t i = 0; i < c->n_domains; i++) {
        exf_text_appendf(&keys[i], "domain.%zu", i);
        EXF_TRY(exf_text_end(&keys[i], err));
        meta[n_meta++] = (exf_st_meta){keys[i].s, c->domains[i].name};
    }
    for (size_t i = 0; i < n; i++) {
        lengths[i] = c->sequence[i].n_tokens;
        domains[i] = c->sequence[i].domain;
        memcpy(documents[i], c->sequence[i].group_sha256, sizeof *documents);
    }
    const exf_tensor tensors[] = {
        {.name = "token_ids", .dtype = EXF_DT_I32, .rank = 1, .shape = {(int64_t)c->n_tokens}, .data = c->ids},
        {.name = "sequence_lengths", .dtype = EXF_DT_I32, .rank = 1, .shape = {(int64_t)n}, .data = lengths},
        {.name = "sequence_domains", .dtype = EXF_DT_I32, .rank = 1, .shape = {(int64_t)n}, .data = domains},
        {.name = "sequence_documents", .dtype = EXF_DT_U8, .rank = 2, .shape = {(int64_t)n, 32}, .data = documents}};
    rc = exf_st_write(target, force, tensors, sizeof tensors / sizeof *tensors, meta, n_meta, NULL, err);
out:
    for (size_t i = 0; keys && i < c->n_domains; i++) exf_text_free(&keys[i]);
    exf_mem_free(keys);
    exf_mem_free(meta);
    exf_mem_free(lengths);
    exf_mem_free(domains);
    exf_mem_free(documents);
    exf_provenance_free(&facts);
    return rc;
}
