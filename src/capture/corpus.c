/* corpus.c - chooses sequences from every source and counts them; see corpus.h. */
#include "capture/corpus_internal.h"

#include "base/err.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"
#include "capture/members.h"
#include "format/unpack.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* A corpus that is still growing. */
typedef struct {
    exf_corpus *corpus;
    const exf_corpus_request *request;
    exf_manifest *manifest;
    exf_tokenizer *tokenizer;
    exf_chat_form chat;
    exf_source_chunks pool;
    int64_t *want;
    size_t cap_sequences, cap_ids, cap_domains;
    int64_t documents; /* of the sources before this one */
    exf_document *document; /* those that the corpus has something of, by rising number */
    size_t n_document, cap_document;
    exf_digest_set kept; /* of the corpus so far */
    char *model;         /* directory of the tokenizer; NULL: the run has none */
} builder;

static exf_code check_request(const exf_corpus_request *q, exf_err *err)
{
    const struct { const char *name; int64_t value, low, high; } limit[] = {
        {"sequences", q->sequences, 0, EXF_MAX_SEQUENCES},
        {"max_tokens", q->max_tokens, 1, INT32_MAX},
        {"min_tokens", q->min_tokens, 1, q->max_tokens},
        {"vocabulary", q->vocab, 1, INT32_MAX},
    };
    for (size_t i = 0; i < sizeof limit / sizeof limit[0]; i++)
        if (limit[i].value < limit[i].low || limit[i].value > limit[i].high)
            return exf_fail(err, EXF_USAGE, "%s: %s is %" PRId64 ", expected %" PRId64 " to %" PRId64, q->manifest, limit[i].name,
                            limit[i].value, limit[i].low, limit[i].high);
    return EXF_OK;
}

/* Returns the first source that is text; m->n if all are tokens. */
static size_t first_text(const exf_manifest *m)
{
    size_t i = 0;
    while (i < m->n && !exf_source_is_text(m->source[i].format)) i++;
    return i;
}

/* ---- one source ------------------------------------------------------ */

static exf_code read_source(builder *b, const exf_manifest_source *s, exf_err *err)
{
    exf_source_chunks *p = &b->pool;
    exf_code rc;
    p->source = s;
    p->ids.n = p->n = 0;
    p->n_short = p->tokens_dropped = p->n_duplicates = p->duplicate_tokens = p->lines = p->matching = 0;
    p->n_documents = p->n_rows = 0;
    EXF_TRY(s->format == EXF_SOURCE_TEXT     ? exf_source_chunks_read_text(p, err)
            : s->format == EXF_SOURCE_TOKENS ? exf_source_chunks_read_tokens(p, err)
                                             : exf_source_chunks_read_lines(p, err));
    EXF_TRY(exf_source_chunks_drop_duplicates(p, &b->kept, err));
    if (p->n > 0 || p->n_duplicates > 0) goto out;
    if (s->n_where && p->matching == 0)
        return exf_fail(err, EXF_MODEL, "%s: empty: none of its %" PRIu64 " lines is what \"where\" asks for", s->label, p->lines);
    return exf_fail(err, EXF_MODEL, "%s: empty: no sequence of at least %" PRId64 " tokens, %" PRIu64 " shorter ones", s->label,
                    p->min_tokens, p->n_short);
out:
    return rc;
}

/* Decides how many sequences to take.  The file must have the number that its source states even in a run that takes fewer;
 * duplicates count as what it has, and leave fewer to take. */
static exf_code choose_count(const builder *b, size_t i, size_t *take, exf_err *err)
{
    const exf_source_chunks *p = &b->pool;
    const exf_manifest_source *s = p->source;
    int64_t want = b->want[i], have = (int64_t)(p->n + p->n_duplicates);
    if (s->sequences > have)
        return exf_fail(err, EXF_MODEL, "%s: %" PRId64 " sequences of at most %" PRId64 " tokens, %" PRId64 " asked for", s->label,
                        have, p->max_tokens, s->sequences);
    if (want > have)
        return exf_fail(err, EXF_MODEL,
                        "%s: %" PRId64 " sequences of at most %" PRId64 " tokens, %" PRId64 " asked for as its share of %" PRId64,
                        s->label, have, p->max_tokens, want, b->request->sequences);
    *take = want < 0 || want > (int64_t)p->n ? p->n : (size_t)want;
    return EXF_OK;
}

static exf_code find_domain(builder *b, const char *name, int32_t *out, exf_err *err)
{
    exf_code rc;
    exf_corpus *c = b->corpus;
    for (size_t i = 0; i < c->n_domains; i++)
        if (strcmp(c->domains[i].name, name) == 0) {
            *out = (int32_t)i;
            return EXF_OK;
        }
    EXF_TRY(exf_mem_grow(&c->domains, &b->cap_domains, c->n_domains + 1, sizeof *c->domains, "domains", err));
    EXF_TRY(exf_mem_strdup(&c->domains[c->n_domains].name, name, "name of a domain", err));
    *out = (int32_t)c->n_domains++;
out:
    return rc;
}

static exf_code take_chunk(builder *b, size_t row, int32_t source, int32_t domain, exf_err *err)
{
    exf_code rc;
    exf_corpus *c = b->corpus;
    exf_token_chunk from = b->pool.chunk[row];
    size_t at = (size_t)c->n_tokens, n = (size_t)from.n;
    EXF_TRY(exf_mem_grow(&c->sequence, &b->cap_sequences, c->n_sequences + 1, sizeof *c->sequence, "sequences", err));
    EXF_TRY(exf_mem_grow(&c->ids, &b->cap_ids, at + n, sizeof *c->ids, "token ids", err));
    memcpy(c->ids + at, b->pool.ids.id + from.first, n * sizeof *c->ids);
    c->sequence[c->n_sequences++] = (exf_sequence){.offset = at, .n_tokens = from.n, .source = source, .domain = domain,
                                                   .row = from.row, .document = b->documents + from.document};
    b->pool.document[from.document].is_run = 1;
    c->n_tokens += n;
    if (from.n > c->max_tokens) c->max_tokens = from.n;
    rc = exf_digest_set_put(&b->kept, b->pool.ids.id + from.first, from.n, err);
out:
    return rc;
}

static exf_code add_source(builder *b, size_t i, exf_err *err)
{
    exf_code rc;
    exf_source_chunks *p = &b->pool;
    exf_corpus *c = b->corpus;
    size_t *pick = NULL, take = 0;
    int32_t domain;
    EXF_TRY(read_source(b, &b->manifest->source[i], err));
    EXF_TRY(choose_count(b, i, &take, err));
    EXF_TRY(find_domain(b, p->source->domain, &domain, err));
    EXF_TRY(exf_mem_new(&pick, take, sizeof *pick, "chosen sequences", err));
    exf_rng_choose(pick, take, p->n, b->request->seed, i);
    uint64_t before = c->n_tokens;
    for (size_t k = 0; k < take; k++) EXF_TRY(take_chunk(b, pick[k], (int32_t)i, domain, err));
    exf_domain *d = &c->domains[domain];
    uint64_t kept = c->n_tokens - before;
    for (int64_t k = 0; k < p->n_documents; k++) { /* keeps those of which the corpus has a sequence, or that one is a copy of */
        exf_document *document = &p->document[k];
        if (!document->is_run && !document->is_copied) continue;
        EXF_TRY(exf_mem_grow(&b->document, &b->cap_document, b->n_document + 1, sizeof *b->document, "documents", err));
        document->number += b->documents;
        b->document[b->n_document++] = *document;
    }
    b->documents += p->n_documents;
    c->documents_known |= p->source->format != EXF_SOURCE_TOKENS;
    d->sequences_kept += take;
    d->sequences_dropped += p->n_short + p->n_duplicates + (p->n - take);
    c->n_duplicates += p->n_duplicates;
    c->duplicate_tokens += p->duplicate_tokens;
    d->tokens_kept += kept;
    d->tokens_dropped += p->tokens_dropped + (p->ids.n - kept);
out:
    exf_mem_free(pick);
    return rc;
}

/* ---- the whole ------------------------------------------------------- */

/* Computes tokens_digest. */
static exf_code hash_tokens(exf_corpus *c, exf_err *err)
{
    exf_code rc;
    exf_hash *h = NULL;
    EXF_TRY(exf_hash_new(&h, err));
    for (size_t i = 0; i < c->n_sequences; i++) {
        const exf_sequence *s = &c->sequence[i];
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(exf_hash_add_u64(h, (uint64_t)s->n_tokens, err));
        EXF_TRY(exf_hash_add(h, c->ids + s->offset, (size_t)s->n_tokens * sizeof *c->ids, err));
    }
    rc = exf_hash_end(h, c->tokens_digest, err);
    h = NULL;
out:
    exf_hash_free(h);
    return rc;
}

/* Reads the manifest of a request, from its file or, where --text made it and its file is not written yet, from its text. */
static exf_code read_manifest(exf_manifest **out, const exf_corpus_request *q, exf_err *err)
{
    return q->manifest_text ? exf_manifest_parse(out, q->manifest_text, strlen(q->manifest_text), "--text", err)
                            : exf_manifest_load(out, q->manifest, err);
}

/* Kinds of work of the progress line; the unit of both is a byte of a file. */
enum { HASHING, TOKENIZING };

/* A file is hashed once and tokenized for every source that reads it. */
static exf_eta plan_reading(const exf_manifest *m)
{
    exf_eta e = {.kind = {[HASHING] = {.prior = 1e-9}, [TOKENIZING] = {.prior = 1e-7}}};
    for (size_t i = 0; i < m->n; i++) {
        struct stat st;
        unsigned char begin[4] = {0};
        double bytes = stat(m->source[i].file, &st) == 0 ? (double)st.st_size : 0;
        int packed = exf_file_begins(m->source[i].file, begin, sizeof begin) && exf_packing_of(begin, sizeof begin) != EXF_PLAIN;
        if (exf_manifest_first_of_file(m, i) == i && m->source[i].sha256[0]) e.kind[HASHING].planned += bytes;
        e.kind[TOKENIZING].planned += packed ? 4 * bytes : bytes; /* about what text unpacks to */
    }
    return e;
}

static exf_code read_sources(builder *b, exf_err *err)
{
    exf_eta work = plan_reading(b->manifest);
    exf_code rc;
    exf_progress_begin("reading text", 0, &work, HASHING);
    EXF_TRY(exf_manifest_verify(b->manifest, b->request->manifest_text != NULL, err));
    exf_progress_turn(TOKENIZING);
    for (size_t i = 0; i < b->manifest->n; i++) EXF_TRY(add_source(b, i, err));
    EXF_TRY(exf_manifest_unpinned(b->manifest, &b->corpus->unpinned, &b->corpus->n_unpinned, err));
out:
    exf_progress_end();
    return rc;
}

/* Finds how the model's chat template renders, if a source has conversations. */
static exf_code find_chat_form(builder *b, exf_err *err)
{
    const exf_manifest *m = b->manifest;
    size_t i = 0;
    while (i < m->n && m->source[i].format != EXF_SOURCE_CHAT) i++;
    if (i == m->n) return EXF_OK;
    exf_code rc = exf_chat_form_of_model(&b->chat, b->model, m->source[i].field, b->tokenizer, err);
    if (rc != EXF_OK) exf_err_prefix(err, "%s: ", m->source[i].label);
    return rc;
}

/* Refuses a tokenizer that makes ids without a row of the embedding, and warns of one that fits another model: releases pad their
 * embeddings by some hundredths at most. */
static exf_code check_vocabulary(const exf_tokenizer *t, const exf_corpus_request *q, exf_err *err)
{
    int64_t size = exf_tokenizer_facts_of(t)->size;
    if (size > q->vocab)
        return exf_fail(err, EXF_MODEL, "%s: has %" PRId64 " tokens, the model's embedding %" PRId64 " rows (vocab_size): it is "
                        "the tokenizer of another model", q->tokenizer, size, q->vocab);
    if (size < q->vocab - q->vocab / 10)
        exf_log_warn("%s: has %" PRId64 " tokens, the model's embedding %" PRId64 " rows (vocab_size); is it this model's "
                     "tokenizer?", q->tokenizer, size, q->vocab);
    return EXF_OK;
}

/* Says what goes before every document, where it is something or could be. */
static void report_bos(const exf_tokenizer *t)
{
    const char *bos = exf_tokenizer_facts_of(t)->around.said.s;
    if (exf_tokenizer_facts_of(t)->around.disputed)
        exf_log_info("before every document: %s, as in transformers 4.57; transformers 5 follows the post_processor of "
                     "tokenizer.json, which has another; data.bos: always or never decides", bos);
    else if (strcmp(bos, "none (post_processor)") != 0)
        exf_log_info("before every document: %s", bos);
}

/* Says what of the text is not run as it stands. */
static void report_left_out(const exf_corpus *c)
{
    if (c->n_duplicates)
        exf_log_warn("%" PRIu64 " sequences (%" PRIu64 " tokens) are in the text more than once: each is taken once, %zu are left",
                     c->n_duplicates, c->duplicate_tokens, c->n_sequences);
    if (c->near_copies)
        exf_log_warn("%" PRIu64 " of %" PRIu64 " documents are near copies of others, whose runs of %d words coincide by %.0f %%: "
                     "they count as %" PRIu64 ", the largest group has %" PRIu64 "; so the text has %" PRIu64 " document%s",
                     c->near_copies, c->n_documents, EXF_SHINGLE, 100 * EXF_SAME_DOCUMENT,
                     c->near_copies + c->n_groups - c->n_documents, c->largest_group, c->n_groups, c->n_groups == 1 ? "" : "s");
    if (c->own_bos)
        exf_log_info("%" PRIu64 " documents begin with their own token before a document (%s): it is not put before them again",
                     c->own_bos, c->tokenizer_bos);
}

exf_code exf_corpus_load(exf_corpus **out, const exf_corpus_request *q, exf_err *err)
{
    builder b = {.request = q};
    exf_code rc;
    *out = NULL;
    EXF_TRY(check_request(q, err));
    EXF_TRY(exf_mem_new(&b.corpus, 1, sizeof *b.corpus, "corpus", err));
    EXF_TRY(read_manifest(&b.manifest, q, err));
    size_t text = first_text(b.manifest);
    if (text < b.manifest->n && !q->tokenizer) {
        rc = exf_fail(err, EXF_USAGE, "%s: is text, and the run has no tokenizer.json", b.manifest->source[text].label);
        goto out;
    }
    if (text < b.manifest->n) {
        EXF_TRY(exf_tokenizer_load(&b.tokenizer, q->tokenizer, q->bos, err));
        EXF_TRY(check_vocabulary(b.tokenizer, q, err));
        memcpy(b.corpus->tokenizer_sha256, exf_tokenizer_facts_of(b.tokenizer)->sha256, EXF_SHA256_HEX);
        snprintf(b.corpus->tokenizer_bos, sizeof b.corpus->tokenizer_bos, "%s", exf_tokenizer_facts_of(b.tokenizer)->around.said.s);
        report_bos(b.tokenizer);
    }
    if (q->tokenizer) EXF_TRY(exf_path_dir(&b.model, q->tokenizer, err));
    EXF_TRY(find_chat_form(&b, err));
    EXF_TRY(exf_mem_new(&b.want, b.manifest->n, sizeof *b.want, "shares of the sources", err));
    EXF_TRY(exf_manifest_shares(b.manifest, q->sequences, b.want, err));
    b.pool = (exf_source_chunks){.tokenizer = b.tokenizer, .chat = b.chat, .model = b.model, .max_tokens = q->max_tokens,
                                 .min_tokens = q->min_tokens, .vocab = q->vocab};
    b.corpus->n_sources = b.manifest->n;
    memcpy(b.corpus->manifest_sha256, b.manifest->sha256, sizeof b.manifest->sha256);
    EXF_TRY(read_sources(&b, err));
    EXF_TRY(exf_corpus_group(b.corpus, b.document, b.n_document, err));
    b.corpus->own_bos = b.pool.own_bos;
    report_left_out(b.corpus);
    EXF_TRY(hash_tokens(b.corpus, err));
out:
    exf_mem_free(b.want);
    exf_mem_free(b.pool.chunk);
    exf_mem_free(b.pool.document);
    exf_mem_free(b.document);
    exf_digest_set_free(&b.kept);
    exf_ids_free(&b.pool.ids);
    exf_chat_form_free(&b.chat);
    exf_mem_free(b.model);
    exf_tokenizer_free(b.tokenizer);
    exf_manifest_free(b.manifest);
    if (rc != EXF_OK) exf_corpus_free(b.corpus);
    else *out = b.corpus;
    return rc;
}

void exf_corpus_free(exf_corpus *c)
{
    if (!c) return;
    for (size_t i = 0; i < c->n_domains; i++) exf_mem_free(c->domains[i].name);
    exf_mem_free(c->domains);
    exf_mem_free(c->sequence);
    exf_mem_free(c->ids);
    exf_mem_free(c->unpinned);
    exf_mem_free(c->sketch);
    exf_mem_free(c);
}

/* ---- a dry run, whose data may not be there yet ------------------------------------------------------ */

static exf_code make_stand_in(exf_corpus *c, const exf_manifest *m, const exf_corpus_request *q, exf_err *err)
{
    int64_t *want = NULL;
    size_t total = 0, n = 0;
    exf_code rc;
    EXF_TRY(exf_mem_new(&want, m->n, sizeof *want, "shares of the sources", err));
    EXF_TRY(exf_manifest_shares(m, q->sequences, want, err));
    for (size_t i = 0; i < m->n; i++) {
        if (want[i] < 0) {
            rc = exf_fail(err, EXF_USAGE,
                          "%s: states no number of sequences and the run none either: without its file it cannot be planned",
                          m->source[i].label);
            goto out;
        }
        total += (size_t)want[i];
    }
    if (total == 0) EXF_TRY(exf_fail(err, EXF_USAGE, "%s: no sequences are asked for", m->path));
    EXF_TRY(exf_mem_new(&c->sequence, total, sizeof *c->sequence, "sequences", err));
    for (size_t i = 0; i < m->n; i++)
        for (int64_t k = 0; k < want[i]; k++, n++)
            c->sequence[n] = (exf_sequence){.offset = n * (size_t)q->max_tokens, .n_tokens = (int32_t)q->max_tokens,
                                            .source = (int32_t)i, .row = k, .document = (int64_t)n, .group = (int64_t)n};
    EXF_TRY(exf_manifest_unpinned(m, &c->unpinned, &c->n_unpinned, err));
    c->n_sequences = n;
    c->n_sources = m->n;
    c->n_tokens = (uint64_t)n * (uint64_t)q->max_tokens;
    c->max_tokens = (int32_t)q->max_tokens;
out:
    exf_mem_free(want);
    return rc;
}

exf_code exf_corpus_plan(exf_corpus **out, const exf_corpus_request *request, char **missing, exf_err *err)
{
    exf_code rc;
    exf_manifest *m = NULL;
    exf_tokenizer *t = NULL;
    *out = NULL;
    *missing = NULL;
    EXF_TRY(read_manifest(&m, request, err));
    const char *absent = NULL, *tokenizer = first_text(m) < m->n ? request->tokenizer : NULL; /* of sources that are text */
    int found = 1, has_tokenizer = 0;
    for (size_t i = 0; found && i < m->n; i++)
        if (strcmp(m->source[i].file, EXF_STANDARD_INPUT) != 0) EXF_TRY(exf_path_look(absent = m->source[i].file, &found, err));
    if (tokenizer) EXF_TRY(exf_path_look(tokenizer, &has_tokenizer, err));
    if (found && tokenizer && !has_tokenizer) absent = tokenizer;
    if (found && (!tokenizer || has_tokenizer)) {
        rc = exf_corpus_load(out, request, err);
        goto out;
    }
    if (has_tokenizer) { /* so that a run refuses it before its data is fetched */
        EXF_TRY(exf_tokenizer_load(&t, tokenizer, request->bos, err));
        report_bos(t);
        EXF_TRY(check_vocabulary(t, request, err));
    }
    EXF_TRY(exf_mem_strdup(missing, absent, "missing file", err));
    EXF_TRY(exf_mem_new(out, 1, sizeof **out, "corpus", err));
    EXF_TRY(make_stand_in(*out, m, request, err));
out:
    exf_tokenizer_free(t);
    exf_manifest_free(m);
    if (rc != EXF_OK) {
        exf_corpus_free(*out);
        exf_mem_free(*missing);
        *out = NULL;
        *missing = NULL;
    }
    return rc;
}

/* ---- shards ------------------------------------------------------------------------------------------ */

exf_code exf_corpus_take_shard(exf_corpus *c, size_t first, size_t end, int index, int of, exf_err *err)
{
    size_t row = c->sequence[first].offset, rows = 0;
    snprintf(c->shard, sizeof c->shard, "%d/%d of %s", index, of, c->tokens_digest);
    /* Domains of which nothing is kept stay, so that the lists of all shards name the same. */
    for (size_t i = 0; i < c->n_domains; i++) c->domains[i].sequences_kept = c->domains[i].tokens_kept = 0;
    c->n_sequences = end - first;
    c->max_tokens = 0;
    memmove(c->sequence, c->sequence + first, c->n_sequences * sizeof *c->sequence);
    for (size_t i = 0; i < c->n_sequences; i++) {
        exf_sequence *s = &c->sequence[i];
        s->offset -= row;
        rows += (size_t)s->n_tokens;
        if (s->n_tokens > c->max_tokens) c->max_tokens = s->n_tokens;
        if (!c->n_domains) continue;
        c->domains[s->domain].sequences_kept++;
        c->domains[s->domain].tokens_kept += (uint64_t)s->n_tokens;
    }
    if (c->ids) memmove(c->ids, c->ids + row, rows * sizeof *c->ids);
    c->n_tokens = rows;
    return c->ids ? hash_tokens(c, err) : EXF_OK; /* a plan's stand-in has no tokens */
}
