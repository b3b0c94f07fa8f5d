/* tokenizer_template.c - the ids that stand before and after a document's: the post-processor of tokenizer.json,
 * tokenizer_config.json beside it, and the run's own choice.
 *
 * The rule: where tokenizer_config.json names a tokenizer_class of the table below, its add_bos_token and add_eos_token decide (the
 * table has what counts where they are missing), and tokenizer.json's post-processor counts for nothing; everywhere else the
 * post-processor decides alone.  transformers 4.57 and what is built on it do so.  transformers 5 follows the post-processor. */
#include "tokenizer/tokenizer_internal.h"

#include "base/file.h"
#include "base/mem.h"

#include <string.h>

enum { MOST_CONFIG = 64 << 20 };

/* ---- the post-processor --------------------------------------------------------------------------------------------- */

static exf_code add_special_token(exf_ids *ids, const exf_json *template, const exf_json *item, const char *where, exf_err *err)
{
    const char *name = exf_json_string(exf_json_get(item, "id"), NULL);
    const exf_json *specials = exf_json_get(template, "special_tokens");
    const exf_json *list = name ? exf_json_get(exf_json_get(specials, name), "ids") : NULL;
    if (exf_json_type(list) != EXF_JSON_ARRAY)
        return exf_fail(err, EXF_MODEL, "%s: post_processor TemplateProcessing: special token \"%s\" has no ids in special_tokens",
                        where, name ? name : "?");
    for (size_t i = 0; i < exf_json_size(list); i++) {
        int32_t id = 0;
        exf_code rc = exf_part_id(&id, exf_json_at(list, i), where, "special token of post_processor", name, err);
        if (rc == EXF_OK) rc = exf_ids_add(ids, &id, 1, err);
        if (rc != EXF_OK) return rc;
    }
    return EXF_OK;
}

/* "single": special tokens, and the sequence "A" exactly once. */
static exf_code load_single(exf_template *t, const exf_json *part, const char *where, exf_err *err)
{
    const exf_json *single = exf_json_get(part, "single");
    int sequences = 0;
    if (t->seen++) return exf_fail(err, EXF_MODEL, "%s: more than one post_processor TemplateProcessing is not supported", where);
    for (size_t i = 0; i < exf_json_size(single); i++) {
        const exf_json *item = exf_json_at(single, i);
        const exf_json *special = exf_json_get(item, "SpecialToken"), *sequence = exf_json_get(item, "Sequence");
        const char *id = exf_json_string(exf_json_get(sequence, "id"), NULL);
        exf_code rc = EXF_OK;
        if (special) rc = add_special_token(sequences ? &t->after : &t->before, part, special, where, err);
        else if (id && strcmp(id, "A") == 0) sequences++;
        else rc = exf_fail(err, EXF_MODEL,
                           "%s: post_processor TemplateProcessing: single[%zu] is neither a SpecialToken nor Sequence \"A\"", where,
                           i);
        if (rc != EXF_OK) return rc;
    }
    if (sequences != 1)
        return exf_fail(err, EXF_MODEL, "%s: post_processor TemplateProcessing: single has Sequence \"A\" %d times, not once",
                        where, sequences);
    return EXF_OK;
}

exf_code exf_template_load(exf_template *t, const exf_json *part, const char *where, exf_err *err)
{
    const char *type = exf_part_type(part);
    if (exf_json_type(part) == EXF_JSON_NULL || strcmp(type, "ByteLevel") == 0) return EXF_OK; /* ByteLevel only moves offsets */
    if (strcmp(type, "TemplateProcessing") == 0) return load_single(t, part, where, err);
    if (strcmp(type, "Sequence") != 0)
        return exf_fail(err, EXF_MODEL,
                        "%s: post_processor \"%s\" is not supported (supported: null, ByteLevel, TemplateProcessing, Sequence)",
                        where, type);
    const exf_json *list = exf_json_get(part, "processors");
    if (exf_json_type(list) != EXF_JSON_ARRAY)
        return exf_fail(err, EXF_MODEL, "%s: post_processor Sequence: processors is %s, not an array", where,
                        exf_json_type_name(list));
    for (size_t i = 0; i < exf_json_size(list); i++) {
        exf_code rc = exf_template_load(t, exf_json_at(list, i), where, err);
        if (rc != EXF_OK) return rc;
    }
    return EXF_OK;
}

/* ---- tokenizer_config.json ---------------------------------------------------------------------------------------------- */

/* Classes that make their template themselves. */
static const struct { const char *name; int bos, eos; } own_template[] = {
    {"LlamaTokenizer", 1, 0}, {"LlamaTokenizerFast", 1, 0}, {"GPTNeoXTokenizer", 0, 0}, {"GPTNeoXTokenizerFast", 0, 0},
};
enum { OWN_TEMPLATES = sizeof own_template / sizeof *own_template };

/* What is read, with the files for messages. */
typedef struct {
    exf_template *t;
    const exf_json *config;
    const char *path, *tokenizer;
    const exf_tokenizer *tokens;
    exf_err *err;
} reading;

/* *on = config[key]; *on stays where it is missing or null. */
static exf_code read_switch(const reading *r, const char *key, int *on)
{
    const exf_json *j = exf_json_get(r->config, key);
    if (exf_json_type(j) == EXF_JSON_NULL) return EXF_OK;
    if (exf_json_type(j) != EXF_JSON_BOOL)
        return exf_fail(r->err, EXF_MODEL, "%s: %s is %s, not true or false", r->path, key, exf_json_type_name(j));
    *on = exf_json_true(j);
    return EXF_OK;
}

/* Makes `ids` the token that config[key] names, if `on`, which `why` says.  help: "", or what to do about it. */
static exf_code take_token(const reading *r, exf_ids *ids, const char *key, int on, const char *why, const char *help)
{
    const exf_json *j = exf_json_get(r->config, key); /* a string, or an object with a "content" */
    const char *text = exf_json_string(exf_json_type(j) == EXF_JSON_OBJECT ? exf_json_get(j, "content") : j, NULL);
    ids->n = 0;
    if (!on) return EXF_OK;
    if (!text) return exf_fail(r->err, EXF_MODEL, "%s: %s, and %s is %s%s", r->path, why, key,
                               exf_json_type_name(j), help);
    int32_t id = exf_added_find(&r->tokens->added, text);
    if (id < 0) id = exf_vocabulary_find(&r->tokens->bpe->vocab, text, strlen(text));
    if (id < 0) return exf_fail(r->err, EXF_MODEL, "%s: %s \"%s\" is no token of %s%s", r->path, key, text, r->tokenizer, help);
    return exf_ids_add(ids, &id, 1, r->err);
}

static exf_code apply_own_template(const reading *r, int bos, int eos, exf_bos choice)
{
    int32_t was = r->t->before.n ? r->t->before.id[0] : -1;
    exf_code rc;
    EXF_TRY(read_switch(r, "add_bos_token", &bos));
    EXF_TRY(read_switch(r, "add_eos_token", &eos));
    if (choice == EXF_BOS_NEVER) bos = 0;
    EXF_TRY(take_token(r, &r->t->before, "bos_token", bos, "a token goes before every document (add_bos_token)",
                       "; data.bos: never leaves it out"));
    EXF_TRY(take_token(r, &r->t->after, "eos_token", eos, "a token goes after every document (add_eos_token)", ""));
    r->t->rule = "add_bos_token";
    r->t->disputed = was != (bos ? r->t->before.id[0] : -1);
out:
    return rc;
}

exf_code exf_template_configure(exf_tokenizer *tokenizer, const char *file, exf_bos bos, exf_err *err)
{
    exf_template *t = &tokenizer->facts.around;
    exf_json *config = NULL;
    char *dir = NULL, *path = NULL;
    int found = 0;
    exf_code rc;
    EXF_TRY(exf_path_dir(&dir, file, err));
    EXF_TRY(exf_path_join(&path, dir, "tokenizer_config.json", err));
    EXF_TRY(exf_path_look(path, &found, err));
    if (found) EXF_TRY(exf_json_load(&config, path, MOST_CONFIG, err));
    reading r = {t, config, path, file, tokenizer, err};
    if (found && exf_json_type(config) != EXF_JSON_OBJECT) {
        rc = exf_fail(err, EXF_MODEL, "%s: is %s, not an object", path, exf_json_type_name(config));
        goto out;
    }
    const char *class = exf_json_string(exf_json_get(r.config, "tokenizer_class"), NULL);
    for (int i = 0; class && i < OWN_TEMPLATES; i++)
        if (strcmp(class, own_template[i].name) == 0)
            EXF_TRY(apply_own_template(&r, own_template[i].bos, own_template[i].eos, bos));
    if (bos == EXF_BOS_NEVER) t->before.n = 0;
    else if (bos == EXF_BOS_ALWAYS && t->before.n == 0)
        EXF_TRY(take_token(&r, &t->before, "bos_token", 1, "data.bos is always", "; leave data.bos at auto"));
    if (bos != EXF_BOS_AUTO) {
        t->rule = bos == EXF_BOS_NEVER ? "data.bos: never" : "data.bos: always";
        t->disputed = 0;
    }
    for (size_t i = 0; i < t->before.n; i++) exf_text_appendf(&t->said, "%s%d", i ? " " : "", (int)t->before.id[i]);
    exf_text_appendf(&t->said, "%s (%s)", t->before.n ? "" : "none", t->rule ? t->rule : "post_processor");
    rc = exf_text_end(&t->said, err);
out:
    exf_json_free(config);
    exf_mem_free(dir);
    exf_mem_free(path);
    return rc;
}
