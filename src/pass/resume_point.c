/* resume_point.c - what a resume point names: the list of records, the checksums of hidden states, and the text of resume.json,
 * which has both; see resume_internal.h.
 *
 *   {"schema": "exfold-resume/3",
 *    "facts": {"model.config_sha256": "...", ...},
 *    "layers_done": 5, "joined": false, "weight_bytes": 123, "flops": 1.5e9,
 *    "hidden": {"file": "hidden-5", "bytes": 123, "sha256": ["of each MiB", ...]},
 *    "records": [{"file": "sums-0.safetensors", "layer": 0, "sha256": "..."}, ...],
 *    "text_sha256": "of this file's text without this member"} */
#include "pass/resume_internal.h"

#include "base/mem.h"
#include "base/text.h"
#include "format/json.h"

#include <string.h>

/* ---- the list of records ---------------------------------------------------------------------- */

exf_resume_record *exf_resume_find_record(const exf_resume *r, const char *file)
{
    for (size_t i = 0; i < r->n_records; i++)
        if (strcmp(r->record[i].file, file) == 0) return &r->record[i];
    return NULL;
}

exf_code exf_resume_set_record(exf_resume *r, const char *file, int layer, const char *sha256, exf_err *err)
{
    exf_code rc = EXF_OK;
    pthread_mutex_lock(&r->lock);
    exf_resume_record *k = exf_resume_find_record(r, file);
    if (!k) {
        EXF_TRY(exf_mem_grow(&r->record, &r->capacity, r->n_records + 1, sizeof *r->record, "records", err));
        k = &r->record[r->n_records];
        EXF_TRY(exf_mem_strdup(&k->file, file, "records", err));
        r->n_records++;
    }
    k->layer = layer;
    memcpy(k->sha256, sha256, EXF_SHA256_HEX);
out:
    pthread_mutex_unlock(&r->lock);
    return rc;
}

exf_code exf_resume_new_checksums(exf_resume_hidden *h, uint64_t bytes, exf_err *err)
{
    h->bytes = bytes;
    h->n_chunks = (size_t)((bytes + EXF_RESUME_CHUNK - 1) / EXF_RESUME_CHUNK);
    return exf_mem_new(&h->sha256, h->n_chunks, sizeof *h->sha256, "checksums", err);
}

#define SCHEMA "exfold-resume/3"
#define SEAL ",\n\"text_sha256\": \""
enum { MOST_BYTES = 256 << 20 }; /* of resume.json: 64 bytes for each MiB of hidden states */

/* ---- writing resume.json ---------------------------------------------------------------------------- */

exf_code exf_resume_point_text(exf_resume *r, exf_text *out, exf_err *err)
{
    const exf_resume_hidden *h = &r->next;
    exf_jw w = {.depth = 0};
    char sha256[EXF_SHA256_HEX];
    exf_code rc;
    exf_jw_open(&w, NULL, '{');
    exf_jw_text(&w, "schema", SCHEMA);
    exf_jw_open(&w, "facts", '{');
    for (size_t i = 0; i < r->facts.n; i++) exf_jw_text(&w, r->facts.key[i], r->facts.value[i]);
    exf_jw_close(&w);
    exf_jw_int(&w, "layers_done", h->progress.layers_done);
    exf_jw_bool(&w, "joined", h->progress.joined);
    exf_jw_count(&w, "weight_bytes", h->progress.weight_bytes);
    exf_jw_real(&w, "flops", h->progress.flops);
    exf_jw_open(&w, "hidden", '{');
    exf_jw_text(&w, "file", h->file);
    exf_jw_count(&w, "bytes", h->bytes);
    exf_jw_open(&w, "sha256", '[');
    for (size_t i = 0; i < h->n_chunks; i++) exf_jw_text(&w, NULL, h->sha256[i]);
    exf_jw_close(&w);
    exf_jw_close(&w);
    exf_jw_open(&w, "records", '[');
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->n_records; i++) {
        if (r->record[i].layer >= h->progress.layers_done) continue;
        exf_jw_open(&w, NULL, '{');
        exf_jw_text(&w, "file", r->record[i].file);
        exf_jw_int(&w, "layer", r->record[i].layer);
        exf_jw_text(&w, "sha256", r->record[i].sha256);
        exf_jw_close(&w);
    }
    pthread_mutex_unlock(&r->lock);
    exf_jw_close(&w);
    exf_jw_close(&w);
    EXF_TRY(exf_jw_end(&w, out, err));
    EXF_TRY(exf_hash_bytes(out->s, out->len, sha256, err));
    out->len -= strlen("}\n");
    exf_text_appendf(out, SEAL "%s\"\n}\n", sha256);
    rc = exf_text_end(out, err);
out:
    return rc;
}

/* ---- reading resume.json ---------------------------------------------------------------------------- */

static exf_code fail_malformed(const exf_resume *r, const char *member, exf_err *err)
{
    return exf_fail(err, EXF_FORMAT, "%s: \"%s\" is missing or malformed; --resume=never starts over", r->path, member);
}

/* Returns the text of a member that holds a SHA-256 in hexadecimal, or NULL. */
static const char *digest_in(const exf_json *j)
{
    size_t n = 0;
    const char *s = exf_json_string(j, &n);
    return s && n == EXF_SHA256_HEX - 1 ? s : NULL;
}

/* Returns the text of a member that is a file's plain name, or NULL. */
static const char *name_in(const exf_json *j)
{
    size_t n = 0;
    const char *s = exf_json_string(j, &n);
    return s && n && strlen(s) == n && !strchr(s, '/') && s[0] != '.' ? s : NULL;
}

static exf_code check_facts(const exf_resume *r, const exf_json *facts, exf_err *err)
{
    for (size_t i = 0; i < r->facts.n; i++) {
        const char *was = exf_json_string(exf_json_get(facts, r->facts.key[i]), NULL);
        if (was && strcmp(was, r->facts.value[i]) == 0) continue;
        return exf_fail(err, EXF_MODEL, "%s: was saved with %s %.200s, this run has %.200s; --resume=never starts over", r->path,
                        r->facts.key[i], was ? was : "missing", r->facts.value[i]);
    }
    if (exf_json_size(facts) == r->facts.n) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "%s: was saved with %zu facts of the run, this run has %zu; --resume=never starts over",
                    r->path, exf_json_size(facts), r->facts.n);
}

/* Checks the SHA-256 with which a text ends.  Cuts the text. */
static exf_code check_seal(const exf_resume *r, char *text, size_t len, exf_err *err)
{
    size_t tail = strlen(SEAL) + EXF_SHA256_HEX - 1 + strlen("\"\n}\n");
    char sha256[EXF_SHA256_HEX], *at = len < tail ? NULL : text + len - tail;
    exf_code rc = EXF_OK;
    if (at && strncmp(at, SEAL, strlen(SEAL)) == 0 && strcmp(text + len - 4, "\"\n}\n") == 0) {
        const char *said = at + strlen(SEAL);
        char end[] = "}\n", copy[EXF_SHA256_HEX];
        memcpy(copy, said, sizeof copy - 1);
        memcpy(at, end, sizeof end);
        EXF_TRY(exf_hash_bytes(text, len - tail + strlen(end), sha256, err));
        if (strncmp(sha256, copy, sizeof copy - 1) == 0) return EXF_OK;
    }
    rc = exf_fail(err, EXF_FORMAT, "%s: differs from its own text_sha256; --resume=never starts over", r->path);
out:
    return rc;
}

static exf_code read_hidden(exf_resume *r, const exf_json *j, exf_err *err)
{
    exf_resume_hidden *h = &r->now;
    const exf_json *list = exf_json_get(j, "sha256");
    const char *file = name_in(exf_json_get(j, "file"));
    int64_t bytes = exf_json_int(exf_json_get(j, "bytes"));
    exf_code rc;
    if (!file || bytes < 0 || exf_json_size(list) != ((uint64_t)bytes + EXF_RESUME_CHUNK - 1) / EXF_RESUME_CHUNK)
        return fail_malformed(r, "hidden", err);
    EXF_TRY(exf_mem_strdup(&h->file, file, "resume point", err));
    EXF_TRY(exf_resume_new_checksums(h, (uint64_t)bytes, err));
    for (size_t i = 0; i < h->n_chunks; i++) {
        const char *digest = digest_in(exf_json_at(list, i));
        if (!digest) return fail_malformed(r, "hidden", err);
        memcpy(h->sha256[i], digest, EXF_SHA256_HEX);
    }
out:
    return rc;
}

exf_code exf_resume_read_point(exf_resume *r, exf_err *err)
{
    exf_json *j = NULL;
    exf_file *f = NULL;
    char *text = NULL;
    size_t len;
    exf_code rc;
    EXF_TRY(exf_resume_directory_read(&r->directory, "resume.json", &f, err));
    EXF_TRY(exf_file_read_all(f, MOST_BYTES, &text, &len, err));
    EXF_TRY(exf_json_parse(&j, text, len, r->path, err));
    const char *schema = exf_json_string(exf_json_get(j, "schema"), NULL);
    if (!schema || strcmp(schema, SCHEMA) != 0) {
        rc = exf_fail(err, EXF_VERSION, "%s: schema is %.100s, expected " SCHEMA "; --resume=never starts over", r->path,
                      schema ? schema : "missing");
        goto out;
    }
    EXF_TRY(check_facts(r, exf_json_get(j, "facts"), err));
    EXF_TRY(check_seal(r, text, len, err));
    int64_t done = exf_json_int(exf_json_get(j, "layers_done")), bytes = exf_json_int(exf_json_get(j, "weight_bytes"));
    double flops = exf_json_real(exf_json_get(j, "flops"));
    if (done < 1 || done > INT32_MAX) EXF_TRY(fail_malformed(r, "layers_done", err));
    if (bytes < 0 || flops < 0) EXF_TRY(fail_malformed(r, "weight_bytes", err));
    r->start = (exf_resume_progress){.layers_done = (int)done, .joined = exf_json_true(exf_json_get(j, "joined")),
                                     .weight_bytes = (uint64_t)bytes, .flops = flops};
    r->now.progress = r->start;
    EXF_TRY(read_hidden(r, exf_json_get(j, "hidden"), err));
    const exf_json *records = exf_json_get(j, "records");
    if (exf_json_type(records) != EXF_JSON_ARRAY) EXF_TRY(fail_malformed(r, "records", err));
    for (size_t i = 0; i < exf_json_size(records); i++) {
        const exf_json *k = exf_json_at(records, i);
        const char *file = name_in(exf_json_get(k, "file")), *digest = digest_in(exf_json_get(k, "sha256"));
        if (!file || !digest) EXF_TRY(fail_malformed(r, "records", err));
        EXF_TRY(exf_resume_set_record(r, file, (int)exf_json_int(exf_json_get(k, "layer")), digest, err));
    }
out:
    exf_file_close(f);
    exf_json_free(j);
    exf_mem_free(text);
    return rc;
}
