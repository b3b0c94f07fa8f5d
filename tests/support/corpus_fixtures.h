/* corpus_fixtures.h - what the corpus tests share: small sources in the scratch
 * directory, a run over them, a refusal with its sentence. */
#ifndef EXF_TESTS_CORPUS_FIXTURES_H
#define EXF_TESTS_CORPUS_FIXTURES_H
#include "tests/support/fixtures.h"

#include "capture/corpus.h"
#include "format/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENIZER "tests/golden/tokenizers/qwen3/tokenizer.json"
#define HEAD "schema: exfold-manifest/1\nsources:\n"
#define SILENT "  - {path: ids.safetensors, format: tokens}\n"
#define JSONL HEAD "  - {path: docs.jsonl, format: jsonl}\n"

static exf_err e; /* of the last call */

/* A run over this manifest, which is written into the scratch directory. */
static inline exf_corpus_request ask(const char *manifest)
{
    static char path[600];
    snprintf(path, sizeof path, "%s", exf_scratch("m.yaml"));
    if (manifest) exf_write_file(path, manifest, strlen(manifest));
    return (exf_corpus_request){
        .manifest = path, .max_tokens = 8, .min_tokens = 1, .seed = 7, .vocab = 1504, .tokenizer = TOKENIZER};
}

static inline exf_corpus *load(const exf_corpus_request *q)
{
    exf_corpus *c = NULL;
    ck_ok(exf_corpus_load(&c, q, &e), e);
    return c;
}

static inline void put(const char *name, const char *text)
{
    exf_write_file(exf_scratch(name), text, strlen(text));
}

/* rows x len ids: row r holds from + r, from + r + 1, ... */
static inline void put_ids_from(const char *name, const char *tensor, int64_t rows, int64_t len, int32_t from)
{
    int32_t *id = malloc((size_t)(rows * len) * sizeof *id + 1);
    for (int64_t i = 0; i < rows * len; i++) id[i] = from + (int32_t)(i / len + i % len);
    exf_tensor t = {.name = tensor, .dtype = EXF_DT_I32, .rank = 2, .shape = {rows, len}, .data = id};
    ck_ok(exf_st_write(exf_scratch(name), 1, &t, 1, NULL, 0, NULL, &e), e);
    free(id);
}

static inline void put_ids(const char *name, const char *tensor, int64_t rows, int64_t len)
{
    put_ids_from(name, tensor, rows, len, 0);
}

/* Each failing test names the refusal's code and a part of its sentence. */
static inline void refused(const exf_corpus_request *q, exf_code want, const char *part)
{
    exf_corpus *c = (exf_corpus *)1;
    ck_fails(exf_corpus_load(&c, q, &e), want, e, part);
    ck_assert_ptr_null(c);
    ck_assert_msg(strstr(e.msg, "m.yaml") != NULL, "no manifest in \"%s\"", e.msg);
}

static inline void refused_manifest(const char *manifest, exf_code want, const char *part)
{
    exf_corpus_request q = ask(manifest);
    refused(&q, want, part);
}

static inline void ids_equal(const exf_corpus *c, size_t i, const int32_t *want, int32_t n)
{
    ck_assert_uint_lt(i, c->n_sequences);
    ck_assert_int_eq(c->sequence[i].n_tokens, n);
    ck_assert_mem_eq(c->ids + c->sequence[i].offset, want, (size_t)n * sizeof *want);
}
#endif
