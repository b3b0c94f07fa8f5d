/* corpus_show.c - writes down samples of a corpus as the model is given them; see corpus.h. */
#include "capture/corpus.h"

#include "base/err.h"
#include "base/file.h"
#include "format/json.h"

#include <inttypes.h>
#include <string.h>

/* Appends the bytes as a JSON string, in which what is no UTF-8, as where a sample is cut within a character, is U+FFFD. */
static exf_code quote(exf_text *out, const exf_text *bytes, exf_err *err)
{
    exf_text clean = {0};
    exf_code rc;
    for (size_t at = 0; at < bytes->len;) {
        size_t n = exf_utf8_valid(bytes->s + at, bytes->len - at), nul = n ? strnlen(bytes->s + at, n) : 0;
        exf_text_append(&clean, bytes->s + at, nul);
        at += nul;
        if (at == bytes->len) break;
        exf_text_appendf(&clean, "\xef\xbf\xbd");
        at++;
    }
    EXF_TRY(exf_text_end(&clean, err));
    rc = exf_json_quote(out, clean.s ? clean.s : "", err);
    if (rc == EXF_OK) exf_make_printable(out->s);
out:
    exf_text_free(&clean);
    return rc;
}

static exf_code show_sample(const exf_corpus *c, const exf_decoder *d, size_t i, exf_text *out, exf_err *err)
{
    const exf_sequence *q = &c->sequence[i];
    const int32_t *id = c->ids + q->offset;
    exf_text bytes = {0}, quoted = {0};
    exf_code rc = EXF_OK;
    exf_text_appendf(out, "sample %zu of %zu: domain %s, source %d, document %" PRId64 ", %d tokens\n", i + 1, c->n_sequences,
                     c->domains[q->domain].name, (int)q->source + 1, q->document + 1, (int)q->n_tokens);
    if (d) {
        EXF_TRY(exf_decode(d, id, (size_t)q->n_tokens, &bytes, err));
        EXF_TRY(quote(&quoted, &bytes, err));
    }
    exf_text_appendf(out, "  text  %s\n  ids  ", d ? quoted.s : "not known: the model has no tokenizer");
    for (int32_t k = 0; k < q->n_tokens; k++) exf_text_appendf(out, " %d", (int)id[k]);
    exf_text_appendf(out, "\n");
out:
    exf_text_free(&bytes);
    exf_text_free(&quoted);
    return rc;
}

/* Says what of the text is not run. */
static void show_left_out(const exf_corpus *c, exf_text *out)
{
    exf_text_appendf(out, "before every document: %s\n", c->tokenizer_bos[0] ? c->tokenizer_bos : "nothing, the text is token ids");
    if (c->own_bos) exf_text_appendf(out, "documents that begin with it themselves, and have it once: %" PRIu64 "\n", c->own_bos);
    for (size_t i = 0; i < c->n_domains; i++) {
        const exf_domain *d = &c->domains[i];
        exf_text_appendf(out, "domain %s: run %" PRIu64 " sequences, %" PRIu64 " tokens; left out %" PRIu64 " sequences, %" PRIu64
                         " tokens\n", d->name, d->sequences_kept, d->tokens_kept, d->sequences_dropped, d->tokens_dropped);
    }
    if (c->n_duplicates)
        exf_text_appendf(out, "of what is left out, in the text more than once: %" PRIu64 " sequences, %" PRIu64 " tokens\n",
                         c->n_duplicates, c->duplicate_tokens);
}

exf_code exf_corpus_show(const exf_corpus *c, const exf_corpus_request *q, int64_t n, exf_text *out, exf_err *err)
{
    exf_tokenizer *t = NULL;
    exf_decoder *d = NULL;
    int found = 0;
    exf_code rc = EXF_OK;
    if (q->tokenizer) EXF_TRY(exf_path_look(q->tokenizer, &found, err));
    if (found) EXF_TRY(exf_tokenizer_load(&t, q->tokenizer, q->bos, err));
    if (t) EXF_TRY(exf_decoder_new(&d, t, err));
    for (size_t i = 0; i < c->n_sequences && (int64_t)i < n; i++) EXF_TRY(show_sample(c, d, i, out, err));
    show_left_out(c, out);
    rc = exf_text_end(out, err);
out:
    exf_decoder_free(d);
    exf_tokenizer_free(t);
    return rc;
}
