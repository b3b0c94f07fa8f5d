/* resume_point.c - a point: its hidden states, resume.json, and the thread that saves both; see resume.h.
 *
 *   {"schema": "exfold-resume/3",
 *    "facts": {"model.config_sha256": "...", ...},
 *    "layers_done": 5, "joined": false, "weight_bytes": 123, "flops": 1.5e9,
 *    "hidden": {"file": "hidden-5", "bytes": 123, "sha256": ["of each MiB", ...]},
 *    "records": [{"file": "sums-0.safetensors", "layer": 0, "sha256": "..."}, ...],
 *    "text_sha256": "of this file's text without this member"} */
#include "pass/resume_internal.h"

#include "base/log.h"
#include "base/mem.h"
#include "format/json.h"

#include <stdio.h>
#include <string.h>

#define SCHEMA "exfold-resume/3"
#define SEAL ",\n\"text_sha256\": \""
enum { MOST_BYTES = 256 << 20 }; /* of resume.json: 64 bytes for each MiB of hidden states */

/* ---- writing hidden states ---------------------------------------------------------------------------- */

/* Makes room for the checksums of so many bytes. */
static exf_code new_checksums(exf_resume_hidden *h, uint64_t bytes, exf_err *err)
{
    h->bytes = bytes;
    h->n_chunks = (size_t)((bytes + EXF_RESUME_CHUNK - 1) / EXF_RESUME_CHUNK);
    return exf_mem_new(&h->sha256, h->n_chunks, sizeof *h->sha256, "checksums", err);
}

exf_code exf_resume_hidden_begin(exf_resume *r, int done, uint64_t bytes, exf_err *err)
{
    exf_resume_hidden *h = &r->next;
    char file[32];
    exf_code rc;
    r->began = exf_clock();
    EXF_TRY(exf_resume_wait(r, err));
    exf_resume_hidden_free(h);
    snprintf(file, sizeof file, "hidden-%d", done);
    if (r->now.file && strcmp(r->now.file, file) == 0)
        return exf_fail(err, EXF_INTERNAL, "%s: %s is of the point that is on the disk", r->path, file);
    h->progress.layers_done = done;
    EXF_TRY(new_checksums(h, bytes, err));
    EXF_TRY(exf_mem_strdup(&h->file, file, "resume point", err));
    EXF_TRY(exf_resume_directory_create(&r->directory, file, &h->out, err));
out:
    return rc;
}

const char *exf_resume_hidden_path(const exf_resume *r)
{
    return exf_output_file_path(r->next.out);
}

exf_code exf_resume_hidden_join(exf_resume *r, uint64_t bytes, const char *path, exf_err *err)
{
    exf_code rc;
    exf_resume_hidden_free(&r->next);
    EXF_TRY(new_checksums(&r->next, bytes, err));
    EXF_TRY(exf_output_file_join(&r->next.out, path, err));
out:
    return rc;
}

char *exf_resume_hidden_digest(const exf_resume *r, size_t chunk)
{
    return r->next.sha256[chunk];
}

exf_code exf_resume_hidden_leave(exf_resume *r, exf_err *err)
{
    exf_output_file *f = r->next.out;
    r->next.out = NULL;
    exf_code rc = exf_output_file_commit(f, err);
    exf_resume_hidden_free(&r->next);
    return rc;
}

/* A range of the file, cut in chunks that are written or read side by side. */
typedef struct {
    const exf_resume_hidden *h;
    const exf_file *in; /* NULL: written to h->out */
    uint64_t offset;
    char *bytes;
    size_t n;
} range;

static size_t chunk_of(const range *k, size_t i)
{
    size_t at = i * (size_t)EXF_RESUME_CHUNK;
    return k->n - at < EXF_RESUME_CHUNK ? k->n - at : EXF_RESUME_CHUNK;
}

static exf_code write_chunk(const range *k, size_t i, exf_err *err)
{
    uint64_t at = k->offset + i * (uint64_t)EXF_RESUME_CHUNK;
    const char *bytes = k->bytes + i * (size_t)EXF_RESUME_CHUNK;
    exf_code rc;
    EXF_TRY(exf_output_file_patch(k->h->out, at, bytes, chunk_of(k, i), err));
    EXF_TRY(exf_hash_bytes(bytes, chunk_of(k, i), k->h->sha256[at / EXF_RESUME_CHUNK], err));
out:
    return rc;
}

static size_t chunks_of(size_t n)
{
    return (n + EXF_RESUME_CHUNK - 1) / EXF_RESUME_CHUNK;
}

exf_code exf_resume_hidden_put(exf_resume *r, uint64_t offset, const void *bytes, size_t n, int n_threads, exf_err *err)
{
    range k = {.h = &r->next, .offset = offset, .bytes = (char *)(uintptr_t)bytes, .n = n};
    exf_loop loop = EXF_LOOP;
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(chunks_of(n), n_threads))
    for (size_t i = 0; i < chunks_of(n); i++) {
        exf_err e;
        if (exf_loop_takes(&loop, i) && write_chunk(&k, i, &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    return exf_loop_end(&loop, err);
}

/* ---- reading hidden states ---------------------------------------------------------------------------- */

exf_code exf_resume_hidden_open(const exf_resume *r, uint64_t bytes, exf_file **out, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_resume_directory_read(&r->directory, r->now.file, out, err));
    if (exf_file_size(*out) != bytes || r->now.bytes != bytes) {
        rc = exf_fail(err, EXF_FORMAT, "%s: has %llu bytes, the run's hidden states take %llu; --resume=never starts over",
                      exf_file_path(*out), (unsigned long long)exf_file_size(*out), (unsigned long long)bytes);
        exf_file_close(*out);
        *out = NULL;
    }
out:
    return rc;
}

static exf_code read_chunk(const range *k, size_t i, exf_err *err)
{
    uint64_t at = k->offset + i * (uint64_t)EXF_RESUME_CHUNK;
    char *bytes = k->bytes + i * (size_t)EXF_RESUME_CHUNK, sha256[EXF_SHA256_HEX];
    exf_code rc;
    EXF_TRY(exf_file_read(k->in, at, bytes, chunk_of(k, i), err));
    EXF_TRY(exf_hash_bytes(bytes, chunk_of(k, i), sha256, err));
    if (strcmp(sha256, k->h->sha256[at / EXF_RESUME_CHUNK]) != 0)
        rc = exf_fail(err, EXF_FORMAT,
                      "%s: the %zu bytes at %llu differ from their sha256 in resume.json; --resume=never starts over",
                      exf_file_path(k->in), chunk_of(k, i), (unsigned long long)at);
out:
    return rc;
}

exf_code exf_resume_hidden_get(const exf_resume *r, const exf_file *f, uint64_t offset, void *to, size_t n, int n_threads,
                               exf_err *err)
{
    range k = {.h = &r->now, .in = f, .offset = offset, .bytes = to, .n = n};
    exf_loop loop = EXF_LOOP;
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(chunks_of(n), n_threads))
    for (size_t i = 0; i < chunks_of(n); i++) {
        exf_err e;
        if (exf_loop_takes(&loop, i) && read_chunk(&k, i, &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    return exf_loop_end(&loop, err);
}

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

/* The text of resume.json for the point of `h` and all records of its layers; its last member has the SHA-256 of the text
 * without it. */
static exf_code write_text(const exf_resume *r, const exf_resume_hidden *h, exf_text *out, exf_err *err)
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

/* ---- saving ------------------------------------------------------------------------------ */

#define NEXT "resume.json.new"

int exf_resume_due(const exf_resume *r, int done, uint64_t bytes)
{
    double cost = r->last_cost > 0 ? r->last_cost : (double)bytes / EXF_RESUME_FIRST_SPEED, wait = cost / EXF_RESUME_MOST_COST;
    if (r->every_layers && done - r->last_done >= r->every_layers) return 1;
    if (r->every_seconds <= 0) return 0;
    return exf_clock() - r->last_time >= (wait > r->every_seconds ? wait : r->every_seconds);
}

static exf_code write_point(exf_resume *r, exf_err *err)
{
    exf_text text = {0};
    exf_output_file *f = NULL, *hidden = r->next.out;
    exf_code rc;
    r->next.out = NULL;
    EXF_TRY(exf_output_file_commit(hidden, err));
    if (r->sync) EXF_TRY(r->sync(r->sync_self, err));
    EXF_TRY(write_text(r, &r->next, &text, err));
    EXF_TRY(exf_resume_directory_create(&r->directory, NEXT, &f, err));
    EXF_TRY(exf_output_file_write(f, text.s, text.len, err));
    rc = exf_output_file_commit(f, err);
    f = NULL;
    if (rc == EXF_OK) rc = exf_resume_directory_replace(&r->directory, NEXT, "resume.json", err);
out:
    exf_output_file_abort(f);
    exf_text_free(&text);
    return rc;
}

static exf_code save_point(void *self, exf_err *err)
{
    exf_resume *r = self;
    exf_code rc = write_point(r, err);
    if (rc == EXF_OK && r->now.file) rc = exf_resume_directory_drop(&r->directory, r->now.file, err);
    if (rc != EXF_OK) {
        exf_err_prefix(err, "resume point: ");
        return rc;
    }
    exf_resume_hidden_free(&r->now);
    r->now = r->next;
    r->next = (exf_resume_hidden){.out = NULL};
    return EXF_OK;
}

void exf_resume_sync_first(exf_resume *r, exf_code (*sync)(void *self, exf_err *err), void *self)
{
    r->sync = sync;
    r->sync_self = self;
}

exf_code exf_resume_save(exf_resume *r, const exf_resume_progress *now, exf_err *err)
{
    r->next.progress = *now;
    r->last_done = now->layers_done;
    r->last_time = exf_clock();
    r->last_cost = r->last_time - r->began;
    return exf_background_start(&r->saving, save_point, r, err);
}

exf_code exf_resume_wait(exf_resume *r, exf_err *err)
{
    return exf_background_wait(&r->saving, err);
}
