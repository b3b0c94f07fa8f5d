/* session_text.c - what exfold-calibrate does with a text alone: prints its first samples (--show-text), or writes its token ids
 * (--ids); see session.h. */
#include "run/session.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/json.h"

#include <stdio.h>

exf_code exf_session_show_text(const exf_session *s, const exf_recipe *r, exf_err *err)
{
    exf_text text = {0};
    if (s->missing_data) return exf_fail(err, EXF_USAGE, "--show-text: %s is not there", s->missing_data);
    exf_code rc = exf_corpus_show(s->corpus, &s->request, r->show_text, &text, err);
    if (rc == EXF_OK && exf_ranks_first(r->job)) fputs(text.s, stdout);
    exf_text_free(&text);
    return rc;
}

/* Reads how many tokens the model knows, which families write at the top of config.json or in text_config. */
static exf_code read_vocabulary(const char *model, int64_t *n, exf_err *err)
{
    exf_json *config = NULL;
    char *path = NULL;
    exf_code rc;
    EXF_TRY(exf_path_join(&path, model, "config.json", err));
    EXF_TRY(exf_json_load(&config, path, 64 << 20, err));
    const exf_json *size = exf_json_get(config, "vocab_size");
    if (!size) size = exf_json_get(exf_json_get(config, "text_config"), "vocab_size");
    *n = exf_json_int(size);
    if (*n < 1 || *n > INT32_MAX) rc = exf_fail(err, EXF_MODEL, "%s: names no vocab_size", path);
out:
    exf_json_free(config);
    exf_mem_free(path);
    return rc;
}

exf_code exf_session_write_ids(const exf_recipe *r, exf_err *err)
{
    exf_provenance settings = {0};
    exf_corpus_request request = {.manifest = r->manifest, .sequences = r->sequences, .max_tokens = r->max_tokens,
                                  .min_tokens = r->min_tokens, .seed = (uint64_t)r->seed, .manifest_text = r->manifest_text,
                                  .bos = (exf_bos)r->bos};
    exf_run_directory dir = {0};
    exf_corpus *corpus = NULL;
    char *tokenizer = NULL;
    exf_code rc;
    if (!r->manifest) {
        rc = exf_fail(err, EXF_USAGE, "--ids: no text is named; give a recipe, or --model DIR --text FILE -o DIR");
        goto out;
    }
    EXF_TRY(exf_output_check(r->ids_path, r->force, err));
    EXF_TRY(read_vocabulary(r->model_path, &request.vocab, err));
    EXF_TRY(exf_tokenizer_path(&tokenizer, r->model_path, err));
    request.tokenizer = tokenizer;
    EXF_TRY(exf_corpus_load(&corpus, &request, err));
    EXF_TRY(exf_run_directory_of_file(&dir, r->ids_path, err));
    if (r->recipe_file) EXF_TRY(exf_solve_settings_keep(r, &settings, err));
    EXF_TRY(exf_capture_write_ids(r->ids_path, r->force, corpus, &request, &settings, err));
    EXF_TRY(exf_announce(r->ids_path, err));
out:
    exf_provenance_free(&settings);
    exf_corpus_free(corpus);
    exf_mem_free(tokenizer);
    exf_run_directory_close(&dir, rc != EXF_OK);
    return rc;
}
