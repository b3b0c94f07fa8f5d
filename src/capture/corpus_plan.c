/* corpus_plan.c - how large a run would be whose data is not there yet; see corpus.h. */
#include "base/file.h"
#include "base/mem.h"
#include "capture/corpus_internal.h"

#include <inttypes.h>
#include <string.h>

/* Sets *missing to the first file that the corpus needs and that is not there, or NULL. */
static exf_code first_missing(const char **missing, const exf_manifest *m, const exf_corpus_request *q, exf_err *err)
{
    int text = 0, found = 1;
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && found && i < m->n; i++) {
        *missing = m->source[i].file;
        rc = exf_path_look(m->source[i].file, &found, err);
        text |= m->source[i].format != EXF_SOURCE_TOKENS;
    }
    if (rc == EXF_OK && found && text && q->tokenizer) rc = exf_path_look(*missing = q->tokenizer, &found, err);
    if (found) *missing = NULL;
    return rc;
}

/* Loads the tokenizer of sources that are text, so that one that is refused is refused before the data is fetched. */
static exf_code check_tokenizer(const exf_manifest *m, const exf_corpus_request *q, exf_err *err)
{
    exf_tokenizer *t = NULL;
    exf_code rc = EXF_OK;
    int text = 0, found = 0;
    for (size_t i = 0; i < m->n; i++) text |= m->source[i].format != EXF_SOURCE_TOKENS;
    if (text && q->tokenizer) rc = exf_path_look(q->tokenizer, &found, err);
    if (found) rc = exf_tokenizer_load(&t, q->tokenizer, err);
    exf_tokenizer_free(t);
    return rc;
}

/* Sequences of each source by the manifest and the request alone. */
static exf_code count(const exf_manifest *m, const exf_corpus_request *q, int64_t *want, size_t *total, exf_err *err)
{
    exf_code rc = exf_manifest_shares(m, q->sequences, want, err);
    *total = 0;
    for (size_t i = 0; rc == EXF_OK && i < m->n; i++) {
        if (want[i] < 0)
            return exf_fail(err, EXF_USAGE,
                            "%s: states no number of sequences and the run none either: without its file it cannot be planned",
                            m->source[i].label);
        *total += (size_t)want[i];
    }
    if (rc == EXF_OK && *total == 0) return exf_fail(err, EXF_USAGE, "%s: no sequences are asked for", m->path);
    return rc;
}

static exf_code stand_in(exf_corpus *c, const exf_manifest *m, const exf_corpus_request *q, exf_err *err)
{
    int64_t *want = NULL;
    size_t total, n = 0;
    exf_code rc;
    EXF_TRY(exf_mem_new(&want, m->n, sizeof *want, "shares of the sources", err));
    EXF_TRY(count(m, q, want, &total, err));
    EXF_TRY(exf_mem_new(&c->sequence, total, sizeof *c->sequence, "sequences", err));
    for (size_t i = 0; i < m->n; i++)
        for (int64_t k = 0; k < want[i]; k++, n++)
            c->sequence[n] = (exf_sequence){n * (size_t)q->max_tokens, (int32_t)q->max_tokens, (int32_t)i, 0, k};
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
    *out = NULL;
    *missing = NULL;
    EXF_TRY(exf_corpus_manifest(&m, request, err));
    const char *absent = NULL;
    EXF_TRY(first_missing(&absent, m, request, err));
    if (!absent) {
        rc = exf_corpus_load(out, request, err);
        goto out;
    }
    EXF_TRY(check_tokenizer(m, request, err));
    EXF_TRY(exf_mem_strdup(missing, absent, "missing file", err));
    EXF_TRY(exf_mem_new(out, 1, sizeof **out, "corpus", err));
    EXF_TRY(stand_in(*out, m, request, err));
out:
    exf_manifest_free(m);
    if (rc != EXF_OK) {
        exf_corpus_free(*out);
        exf_mem_free(*missing);
        *out = NULL;
        *missing = NULL;
    }
    return rc;
}
