/* tokenizer.c - reads tokenizer.json, or tiktoken's file, and puts the parts together, in the library's order: added tokens,
 * normalizer, added tokens again, pre-tokenizer, model, template; see tokenizer.h. */
#include "tokenizer/tokenizer_internal.h"

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"

#include <string.h>

enum { LARGEST_FILE = 64 << 20 };

/* ---- loading ---------------------------------------------------------- */

static exf_code load_parts(exf_tokenizer *t, const exf_json *doc, const char *where, exf_err *err)
{
    static const char *const off[] = {"truncation", "padding"};
    exf_code rc = EXF_OK;
    if (exf_json_type(doc) != EXF_JSON_OBJECT)
        return exf_fail(err, EXF_MODEL, "%s: not a tokenizer: the file is %s, not an object", where, exf_json_type_name(doc));
    const char *version = exf_json_string(exf_json_get(doc, "version"), NULL);
    if (version && strcmp(version, "1.0") != 0)
        return exf_fail(err, EXF_MODEL, "%s: version \"%s\" is not supported (supported: 1.0)", where, version);
    for (int i = 0; i < 2; i++) EXF_TRY(exf_part_off(doc, off[i], where, "a tokenizer", err));
    EXF_TRY(exf_normalizer_load(&t->normalizer, exf_json_get(doc, "normalizer"), where, err));
    EXF_TRY(exf_bpe_load(&t->bpe, exf_json_get(doc, "model"), where, err));
    const exf_json *pre = exf_json_get(doc, "pre_tokenizer");
    if (t->bpe->fallback) EXF_TRY(exf_metaspace_load(&t->metaspace, &t->normalizer, pre, where, err));
    else EXF_TRY(exf_splitter_load(&t->splitter, pre, where, err));
    EXF_TRY(exf_template_load(&t->facts.around, exf_json_get(doc, "post_processor"), where, err));
    EXF_TRY(exf_added_load(&t->added, exf_json_get(doc, "added_tokens"), t->bpe, &t->normalizer, where, err));
out:
    return rc;
}

exf_code exf_tokenizer_load(exf_tokenizer **out, const char *path, exf_bos bos, exf_err *err)
{
    exf_json *doc = NULL;
    char *bytes = NULL;
    size_t len;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_new(out, 1, sizeof **out, "tokenizer", err));
    EXF_TRY(exf_file_slurp(path, LARGEST_FILE, &bytes, &len, err));
    EXF_TRY(exf_hash_bytes(bytes, len, (*out)->facts.sha256, err));
    if (exf_tiktoken_is(path)) {
        EXF_TRY(exf_tiktoken_load(&(*out)->bpe, &(*out)->splitter, &(*out)->added, path, bytes, len, err));
        (*out)->facts.around.rule = EXF_TIKTOKEN_FILE;
    } else {
        EXF_TRY(exf_json_parse(&doc, bytes, len, path, err));
        exf_mem_free(bytes); /* before the tables grow: the parsed file is large enough */
        bytes = NULL;
        EXF_TRY(load_parts(*out, doc, path, err));
    }
    EXF_TRY(exf_template_configure(*out, path, bos, err));
    const exf_ids *around[] = {&(*out)->facts.around.before, &(*out)->facts.around.after};
    (*out)->facts.size = (*out)->bpe->size > (*out)->added.size ? (*out)->bpe->size : (*out)->added.size;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < around[k]->n; i++)
            if (around[k]->id[i] >= (*out)->facts.size) (*out)->facts.size = around[k]->id[i] + 1;
out:
    exf_json_free(doc);
    exf_mem_free(bytes);
    if (rc != EXF_OK) {
        exf_tokenizer_free(*out);
        *out = NULL;
    }
    return rc;
}

const exf_tokenizer_facts *exf_tokenizer_facts_of(const exf_tokenizer *t)
{
    return &t->facts;
}

exf_code exf_tokenizer_path(char **out, const char *dir, exf_err *err)
{
    static const char *const name[] = {"tokenizer.json", EXF_TIKTOKEN_FILE};
    int found = 0;
    exf_code rc = EXF_OK;
    for (int i = 0; !found && i < 2; i++) {
        EXF_TRY(exf_path_join(out, dir, name[i], err));
        EXF_TRY(exf_path_look(*out, &found, err));
        if (found) return EXF_OK;
        exf_mem_free(*out);
    }
    return exf_path_join(out, dir, name[0], err);
out:
    exf_mem_free(*out);
    *out = NULL;
    return rc;
}

void exf_tokenizer_free(exf_tokenizer *t)
{
    if (!t) return;
    exf_added_free(&t->added);
    exf_normalizer_free(&t->normalizer);
    exf_splitter_free(t->splitter);
    exf_bpe_free(t->bpe);
    exf_ids_free(&t->facts.around.before);
    exf_ids_free(&t->facts.around.after);
    exf_text_free(&t->facts.around.said);
    exf_mem_free(t);
}

/* ---- encoding ------------------------------------------------------- */

typedef struct {
    const exf_tokenizer *t;
    exf_ids *ids;
    exf_split_work *split;
    exf_bpe_work bpe;
    exf_normal_work normal;
    exf_text blanks;         /* what metaspace makes of a text */
    exf_added_work raw, normalized;
    const char *text, *stretch; /* the document, and the stretch of it that is encoded, normalized; NULL if another went before */
    size_t untold; /* bytes encoded since progress was last told */
} encoder;

static void report_progress(encoder *e)
{
    exf_progress_add((double)e->untold);
    e->untold = 0;
}

static exf_code encode_piece(void *ctx, const char *pretoken, size_t len, exf_err *err)
{
    enum { OFTEN = 1 << 16 };
    encoder *e = ctx;
    e->untold += len;
    if (e->untold >= OFTEN) {
        exf_code rc = exf_stop_check(err);
        if (rc != EXF_OK) return rc;
        report_progress(e);
    }
    return exf_bpe_encode(e->t->bpe, &e->bpe, pretoken, len, e->ids, err);
}

static exf_code encode_plain(encoder *e, const char *text, size_t len, exf_err *err)
{
    const exf_tokenizer *t = e->t;
    if (t->splitter) return exf_splitter_run(t->splitter, e->split, text, len, encode_piece, e, err);
    return exf_metaspace_run(&t->metaspace, t->bpe->words, &e->blanks, text == e->stretch, text, len, encode_piece, e, err);
}

typedef exf_code rest_fn(encoder *e, const char *text, size_t len, exf_err *err);

/* The set's tokens become their ids, what lies between them goes to `rest`. */
static exf_code encode_around(encoder *e, const exf_added_set *set, exf_added_work *work, rest_fn *rest, const char *text,
                              size_t len, exf_err *err)
{
    exf_added_match m;
    size_t done = 0;
    exf_code rc;
    EXF_TRY(exf_added_scan(set, work, text, len, err));
    while (exf_added_next(set, work, done, &m)) {
        EXF_TRY(rest(e, text + done, m.from - done, err));
        EXF_TRY(exf_ids_add(e->ids, &m.id, 1, err));
        done = m.to;
    }
    EXF_TRY(rest(e, text + done, len - done, err));
out:
    return rc;
}

/* Each stretch between raw added tokens is normalized by itself: a combining mark
 * after such a token joins with nothing. */
static exf_code encode_stretch(encoder *e, const char *text, size_t len, exf_err *err)
{
    int first = text == e->text;
    exf_code rc = exf_normalize(&e->t->normalizer, &e->normal, &text, &len, err);
    if (rc != EXF_OK) return rc;
    e->stretch = first ? text : NULL;
    return encode_around(e, &e->t->added.normalized, &e->normalized, encode_plain, text, len, err);
}

exf_code exf_tokenizer_encode(const exf_tokenizer *t, const char *text, size_t len, exf_ids *ids, exf_err *err)
{
    encoder e = {.t = t, .ids = ids, .text = text};
    size_t before = ids->n, valid = exf_utf8_valid(text, len);
    exf_code rc;
    if (valid < len)
        return exf_fail(err, EXF_FORMAT, "text is not valid UTF-8: byte %zu is 0x%02x", valid,
                        (unsigned)(unsigned char)text[valid]);
    EXF_TRY(exf_split_work_new(&e.split, err));
    EXF_TRY(exf_ids_add(ids, t->facts.around.before.id, t->facts.around.before.n, err));
    EXF_TRY(encode_around(&e, &t->added.raw, &e.raw, encode_stretch, text, len, err));
    EXF_TRY(exf_ids_add(ids, t->facts.around.after.id, t->facts.around.after.n, err));
    report_progress(&e);
out:
    if (rc != EXF_OK) ids->n = before;
    exf_split_work_free(e.split);
    exf_mem_free(e.bpe.symbol);
    exf_mem_free(e.bpe.heap);
    exf_text_free(&e.bpe.mapped);
    exf_normal_work_free(&e.normal);
    exf_text_free(&e.blanks);
    exf_mem_free(e.raw.match);
    exf_mem_free(e.normalized.match);
    return rc;
}
