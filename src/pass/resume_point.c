/* resume_point.c - resume.json, which names the files of a point: its text is written, and read and checked; see resume.h.
 *
 *   {"schema": "exfold-resume/3",
 *    "facts": {"model.config_sha256": "...", ...},
 *    "layers_done": 5, "joined": false, "weight_bytes": 123, "flops": 1.5e9,
 *    "hidden": {"file": "hidden-5", "bytes": 123, "sha256": ["of each MiB", ...]},
 *    "records": [{"file": "sums-0.safetensors", "layer": 0, "sha256": "..."}, ...],
 *    "text_sha256": "of this file's text without this member"} */
#include "pass/resume_internal.h"

#include "base/mem.h"
#include "format/json.h"

#include <string.h>

#define SCHEMA "exfold-resume/3"
#define SEAL ",\n\"text_sha256\": \""
enum { MOST_BYTES = 256 << 20 }; /* of resume.json: 64 bytes for each MiB of hidden states */

/* ---- writing resume.json ---------------------------------------------------------------------------- */

static void write_hidden(exf_jw *w, const exf_resume_hidden *h)
{
    exf_jw_open(w, "hidden", '{');
    exf_jw_text(w, "file", h->file);
    exf_jw_count(w, "bytes", h->bytes);
    exf_jw_open(w, "sha256", '[');
    for (size_t i = 0; i < h->n_chunks; i++) exf_jw_text(w, NULL, h->sha256[i]);
    exf_jw_close(w);
    exf_jw_close(w);
}

static void write_records(exf_jw *w, const exf_resume *r, int done)
{
    exf_jw_open(w, "records", '[');
    for (size_t i = 0; i < r->n_records; i++) {
        if (r->record[i].layer >= done) continue;
        exf_jw_open(w, NULL, '{');
        exf_jw_text(w, "file", r->record[i].file);
        exf_jw_int(w, "layer", r->record[i].layer);
        exf_jw_text(w, "sha256", r->record[i].sha256);
        exf_jw_close(w);
    }
    exf_jw_close(w);
}

/* The last member has the SHA-256 of the text without it. */
exf_code exf_resume_point_text(const exf_resume *r, const exf_resume_hidden *h, exf_text *out, exf_err *err)
{
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
    write_hidden(&w, h);
    pthread_mutex_lock((pthread_mutex_t *)(uintptr_t)&r->lock);
    write_records(&w, r, h->progress.layers_done);
    pthread_mutex_unlock((pthread_mutex_t *)(uintptr_t)&r->lock);
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
    if (!file || bytes < 0) return fail_malformed(r, "hidden", err);
    h->bytes = (uint64_t)bytes;
    h->n_chunks = exf_json_size(list);
    if (h->n_chunks != (h->bytes + EXF_RESUME_CHUNK - 1) / EXF_RESUME_CHUNK) return fail_malformed(r, "hidden", err);
    EXF_TRY(exf_mem_strdup(&h->file, file, "resume point", err));
    EXF_TRY(exf_mem_new(&h->sha256, h->n_chunks, sizeof *h->sha256, "checksums", err));
    for (size_t i = 0; i < h->n_chunks; i++) {
        const char *digest = digest_in(exf_json_at(list, i));
        if (!digest) return fail_malformed(r, "hidden", err);
        memcpy(h->sha256[i], digest, EXF_SHA256_HEX);
    }
out:
    return rc;
}

static exf_code read_records(exf_resume *r, const exf_json *list, exf_err *err)
{
    exf_code rc = exf_json_type(list) == EXF_JSON_ARRAY ? EXF_OK : fail_malformed(r, "records", err);
    for (size_t i = 0; rc == EXF_OK && i < exf_json_size(list); i++) {
        const exf_json *k = exf_json_at(list, i);
        const char *file = name_in(exf_json_get(k, "file")), *digest = digest_in(exf_json_get(k, "sha256"));
        if (!file || !digest) return fail_malformed(r, "records", err);
        rc = exf_resume_record_set(r, file, (int)exf_json_int(exf_json_get(k, "layer")), digest, err);
    }
    return rc;
}

static exf_code check_schema(const exf_resume *r, const exf_json *j, exf_err *err)
{
    const char *schema = exf_json_string(exf_json_get(j, "schema"), NULL);
    if (schema && strcmp(schema, SCHEMA) == 0) return EXF_OK;
    return exf_fail(err, EXF_VERSION, "%s: schema is %.100s, expected " SCHEMA "; --resume=never starts over", r->path,
                    schema ? schema : "missing");
}

static exf_code read_progress(exf_resume *r, const exf_json *j, exf_err *err)
{
    int64_t done = exf_json_int(exf_json_get(j, "layers_done")), bytes = exf_json_int(exf_json_get(j, "weight_bytes"));
    double flops = exf_json_real(exf_json_get(j, "flops"));
    if (done < 1 || done > INT32_MAX) return fail_malformed(r, "layers_done", err);
    if (bytes < 0 || flops < 0) return fail_malformed(r, "weight_bytes", err);
    r->start = (exf_resume_progress){.layers_done = (int)done, .joined = exf_json_true(exf_json_get(j, "joined")),
                                     .weight_bytes = (uint64_t)bytes, .flops = flops};
    return EXF_OK;
}

exf_code exf_resume_point_read(exf_resume *r, exf_err *err)
{
    exf_json *j = NULL;
    exf_file *f = NULL;
    char *text = NULL;
    size_t len;
    exf_code rc;
    EXF_TRY(exf_resume_directory_read(&r->directory, "resume.json", &f, err));
    EXF_TRY(exf_file_read_all(f, MOST_BYTES, &text, &len, err));
    EXF_TRY(exf_json_parse(&j, text, len, r->path, err));
    EXF_TRY(check_schema(r, j, err));
    EXF_TRY(check_facts(r, exf_json_get(j, "facts"), err));
    EXF_TRY(check_seal(r, text, len, err));
    EXF_TRY(read_progress(r, j, err));
    EXF_TRY(read_hidden(r, exf_json_get(j, "hidden"), err));
    EXF_TRY(read_records(r, exf_json_get(j, "records"), err));
    r->now.progress = r->start;
out:
    exf_file_close(f);
    exf_json_free(j);
    exf_mem_free(text);
    return rc;
}
