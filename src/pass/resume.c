/* resume.c - a resume point: its records, its hidden states, and resume.json, which names the files of both; see resume.h.
 *
 *   {"schema": "exfold-resume/3",
 *    "facts": {"model.config_sha256": "...", ...},
 *    "layers_done": 5, "joined": false, "weight_bytes": 123, "flops": 1.5e9,
 *    "hidden": {"file": "hidden-5", "bytes": 123, "sha256": ["of each MiB", ...]},
 *    "records": [{"file": "sums-0.safetensors", "layer": 0, "sha256": "..."}, ...],
 *    "text_sha256": "of this file's text without this member"} */
#include "pass/resume.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "base/text.h"
#include "format/json.h"
#include "pass/resume_directory.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* A file that belongs to a point. */
typedef struct {
    char *file; /* its name in the directory */
    int layer;
    char sha256[EXF_SHA256_HEX];
} record;

typedef char chunk_digest[EXF_SHA256_HEX];

typedef struct {
    exf_output_file *out;      /* while the file is written */
    char *file;                /* "hidden-<n>"; NULL: none */
    uint64_t bytes;
    chunk_digest *sha256; /* [n_chunks] */
    size_t n_chunks;
    exf_resume_progress progress; /* of the run when it saved these hidden states */
} hidden_file;

struct exf_resume {
    exf_resume_directory directory;
    char *path; /* of resume.json, for messages */
    exf_provenance facts;
    int64_t every_layers;
    double every_seconds;
    int follows;                  /* 1: another process makes the point */
    exf_resume_progress start;    /* of the point that was opened */
    pthread_mutex_t lock;         /* guards the records */
    record *record;
    size_t n_records, capacity;
    hidden_file now, next;  /* of the point on disk, and of the one that is being made */
    int last_done;                /* layers done when the last save began */
    double began, last_time;      /* exf_clock() when the save began, and when the run went on beside it */
    double last_cost;             /* seconds between the two */
    exf_background saving;        /* makes a point */
    exf_code (*sync)(void *self, exf_err *err); /* of the run's unfinished output; NULL: it has none */
    void *sync_self;
};

/* ---- how far the run is ---------------------------------------------------------------------- */

int exf_resume_saves(const exf_resume *r)
{
    return r->every_layers > 0 || r->every_seconds > 0;
}

const exf_resume_progress *exf_resume_start(const exf_resume *r)
{
    return &r->start;
}

int exf_resume_saved_layers(const exf_resume *r)
{
    return r->now.file ? r->now.progress.layers_done : 0;
}

/* ---- the list of records ---------------------------------------------------------------------- */

/* Returns the record of a file; NULL if there is none. */
static record *find_record(const exf_resume *r, const char *file)
{
    for (size_t i = 0; i < r->n_records; i++)
        if (strcmp(r->record[i].file, file) == 0) return &r->record[i];
    return NULL;
}

/* Adds a record or replaces the one of the same file. */
static exf_code set_record(exf_resume *r, const char *file, int layer, const char *sha256, exf_err *err)
{
    exf_code rc = EXF_OK;
    pthread_mutex_lock(&r->lock);
    record *k = find_record(r, file);
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

/* ---- files ------------------------------------------------------------------------------------- */

enum { NAME_LEN = 80 };

static void record_name(char out[NAME_LEN], const char *name, int layer)
{
    snprintf(out, NAME_LEN, "%s-%d.safetensors", name, layer);
}

/* Writes bytes piece by piece, each of which a thread of the hash's own takes while the next one is written. */
static exf_code write_bytes(exf_output_file *f, exf_hash *h, const char *bytes, size_t n, exf_err *err)
{
    enum { PIECE = 1 << 20 };
    exf_code rc = EXF_OK;
    for (size_t at = 0; rc == EXF_OK && at < n; at += PIECE) {
        size_t some = n - at < PIECE ? n - at : PIECE;
        rc = exf_output_file_write(f, bytes + at, some, err);
        if (rc == EXF_OK) rc = exf_hash_add(h, bytes + at, some, err);
    }
    return rc;
}

/* Writes a safetensors file, and the digest of the bytes that were written. */
static exf_code write_record(exf_output_file *f, const exf_tensor *tensors, size_t n, char sha256[EXF_SHA256_HEX], exf_err *err)
{
    const char *path = exf_output_file_path(f);
    exf_text header = {0};
    exf_hash *h = NULL;
    size_t *order = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&order, n, sizeof *order, "record", err));
    EXF_TRY(exf_hash_new(&h, err));
    exf_hash_beside(h);
    EXF_TRY(exf_st_header(&header, order, path, tensors, n, NULL, 0, err));
    EXF_TRY(write_bytes(f, h, header.s, header.len, err));
    for (size_t i = 0; i < n; i++) {
        const exf_tensor *t = &tensors[order[i]];
        uint64_t bytes;
        EXF_TRY(exf_st_check(path, t, &bytes, err));
        EXF_TRY(write_bytes(f, h, t->data, (size_t)bytes, err));
    }
    rc = exf_hash_end(h, sha256, err);
    h = NULL;
out:
    exf_hash_free(h);
    exf_text_free(&header);
    exf_mem_free(order);
    return rc;
}

exf_code exf_resume_put(exf_resume *r, const char *name, int layer, const exf_tensor *tensors, size_t n, exf_err *err)
{
    char file[NAME_LEN], sha256[EXF_SHA256_HEX];
    exf_output_file *f = NULL;
    exf_code rc;
    if (!exf_resume_saves(r) || r->follows) return EXF_OK;
    record_name(file, name, layer);
    if (layer < exf_resume_saved_layers(r))
        return exf_fail(err, EXF_INTERNAL, "%s: %s is of the point of %d layers", r->path, file, exf_resume_saved_layers(r));
    EXF_TRY(exf_resume_directory_create(&r->directory, file, &f, err));
    EXF_TRY(write_record(f, tensors, n, sha256, err));
    rc = exf_output_file_commit(f, err);
    f = NULL;
    if (rc == EXF_OK) rc = set_record(r, file, layer, sha256, err);
out:
    exf_output_file_abort(f);
    return rc;
}

exf_code exf_resume_get(const exf_resume *r, const char *name, int layer, exf_st_file **out, exf_err *err)
{
    char file[NAME_LEN], sha256[EXF_SHA256_HEX];
    exf_file *f = NULL;
    exf_code rc;
    *out = NULL;
    record_name(file, name, layer);
    const record *k = find_record(r, file);
    if (!k)
        return exf_fail(err, EXF_FORMAT, "%s: names no %s, which layer %d left; --resume=never starts over", r->path, file, layer);
    EXF_TRY(exf_resume_directory_read(&r->directory, file, &f, err));
    EXF_TRY(exf_hash_open_file(f, sha256, err));
    if (strcmp(sha256, k->sha256) != 0) {
        rc = exf_fail(err, EXF_FORMAT, "%s: has sha256 %.12s..., resume.json says %.12s...; --resume=never starts over",
                      exf_file_path(f), sha256, k->sha256);
        goto out;
    }
    rc = exf_st_open_file(out, f, err);
    f = NULL;
out:
    exf_file_close(f);
    return rc;
}

exf_code exf_resume_read(const exf_st_file *f, const exf_tensor *expected, void *data, exf_err *err)
{
    const exf_st_tensor *t = exf_st_find(f, expected->name);
    int same = t && t->view.dtype == expected->dtype && t->view.rank == expected->rank;
    for (int i = 0; same && i < expected->rank; i++) same = t->view.shape[i] == expected->shape[i];
    if (!same)
        return exf_fail(err, EXF_FORMAT, "%s: has no %s of the run's shape; --resume=never starts over", exf_st_path(f),
                        expected->name);
    return exf_st_read(f, t, 0, data, t->nbytes, err);
}

/* Frees what h holds, and drops a file that is being written. */
static void free_hidden(hidden_file *h)
{
    exf_output_file_abort(h->out);
    exf_mem_free(h->file);
    exf_mem_free(h->sha256);
    *h = (hidden_file){.out = NULL};
}

/* ---- writing hidden states ---------------------------------------------------------------------------- */

/* Makes room for the checksums of so many bytes. */
static exf_code new_checksums(hidden_file *h, uint64_t bytes, exf_err *err)
{
    h->bytes = bytes;
    h->n_chunks = (size_t)((bytes + EXF_RESUME_CHUNK - 1) / EXF_RESUME_CHUNK);
    return exf_mem_new(&h->sha256, h->n_chunks, sizeof *h->sha256, "checksums", err);
}

exf_code exf_resume_hidden_begin(exf_resume *r, int done, uint64_t bytes, exf_err *err)
{
    hidden_file *h = &r->next;
    char file[32];
    exf_code rc;
    r->began = exf_clock();
    EXF_TRY(exf_resume_wait(r, err));
    free_hidden(h);
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
    free_hidden(&r->next);
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
    free_hidden(&r->next);
    return rc;
}

/* A range of the file, cut in chunks that are written or read side by side. */
typedef struct {
    const hidden_file *h;
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

typedef exf_code (*chunk_step)(const range *k, size_t i, exf_err *err);

static exf_code each_chunk(const range *k, chunk_step step, int n_threads, exf_err *err)
{
    size_t n = (k->n + EXF_RESUME_CHUNK - 1) / EXF_RESUME_CHUNK;
    exf_loop loop = EXF_LOOP;
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(n, n_threads))
    for (size_t i = 0; i < n; i++) {
        exf_err e;
        if (exf_loop_takes(&loop, i) && step(k, i, &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    return exf_loop_end(&loop, err);
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

exf_code exf_resume_hidden_put(exf_resume *r, uint64_t offset, const void *bytes, size_t n, int n_threads, exf_err *err)
{
    range k = {.h = &r->next, .offset = offset, .bytes = (char *)(uintptr_t)bytes, .n = n};
    return each_chunk(&k, write_chunk, n_threads, err);
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
    return each_chunk(&k, read_chunk, n_threads, err);
}

#define SCHEMA "exfold-resume/3"
#define SEAL ",\n\"text_sha256\": \""
enum { MOST_BYTES = 256 << 20 }; /* of resume.json: 64 bytes for each MiB of hidden states */

/* ---- writing resume.json ---------------------------------------------------------------------------- */

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

/* Writes the text of resume.json for the point of h and all records of its layers.  The last member has the SHA-256 of the text
 * without it. */
static exf_code point_text(const exf_resume *r, const hidden_file *h, exf_text *out, exf_err *err)
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
    exf_jw_open(&w, "hidden", '{');
    exf_jw_text(&w, "file", h->file);
    exf_jw_count(&w, "bytes", h->bytes);
    exf_jw_open(&w, "sha256", '[');
    for (size_t i = 0; i < h->n_chunks; i++) exf_jw_text(&w, NULL, h->sha256[i]);
    exf_jw_close(&w);
    exf_jw_close(&w);
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
    hidden_file *h = &r->now;
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
        rc = set_record(r, file, (int)exf_json_int(exf_json_get(k, "layer")), digest, err);
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

/* Reads resume.json into r: EXF_VERSION for another schema, EXF_MODEL where a fact differs. */
static exf_code read_point(exf_resume *r, exf_err *err)
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
    EXF_TRY(point_text(r, &r->next, &text, err));
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
    free_hidden(&r->now);
    r->now = r->next;
    r->next = (hidden_file){.out = NULL};
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

/* ---- opening ---------------------------------------------------------------------------------- */

/* Returns 1 for a file of the point; what a killed run left of its next point is removed. */
static int is_of_point(const void *self, const char *name)
{
    const exf_resume *r = self;
    return strcmp(name, "resume.json") == 0 || strcmp(name, r->now.file) == 0 || find_record(r, name);
}

/* Reads the point.  If there is none, or the run starts over, removes what an earlier run left. */
static exf_code find_point(exf_resume *r, exf_resume_mode mode, exf_err *err)
{
    int found = 0;
    exf_code rc = EXF_OK;
    if (mode != EXF_RESUME_NEVER) EXF_TRY(exf_resume_directory_look(&r->directory, "resume.json", &found, err));
    if (found) {
        EXF_TRY(read_point(r, err));
        return r->follows ? EXF_OK : exf_resume_directory_prune(&r->directory, is_of_point, r, err);
    }
    if (mode == EXF_RESUME_REQUIRE)
        return exf_fail(err, EXF_USAGE, "%s: is not there, --resume=require asks for a resume point", r->path);
    EXF_TRY(exf_resume_remove(r, err));
    if (exf_resume_saves(r) && !r->follows) rc = exf_resume_directory_make(&r->directory, err);
out:
    return rc;
}

exf_code exf_resume_open(exf_resume **out, const exf_resume_options *o, exf_err *err)
{
    exf_resume *r = NULL;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_new(&r, 1, sizeof *r, "resume point", err));
    pthread_mutex_init(&r->lock, NULL);
    r->every_layers = o->every_layers;
    r->every_seconds = o->every_seconds;
    r->follows = o->follows;
    r->last_time = exf_clock();
    EXF_TRY(exf_resume_directory_open(&r->directory, o->directory, o->outputs, o->follows, err));
    EXF_TRY(exf_path_join(&r->path, o->directory, "resume.json", err));
    EXF_TRY(exf_provenance_copy(&r->facts, o->facts, err));
    EXF_TRY(find_point(r, o->mode, err));
    r->last_done = r->start.layers_done;
out:
    if (rc == EXF_OK)
        *out = r;
    else
        exf_resume_free(r);
    return rc;
}

void exf_resume_free(exf_resume *r)
{
    exf_err unused;
    if (!r) return;
    if (exf_resume_wait(r, &unused) != EXF_OK) unused.code = EXF_OK; /* the failure is dropped */
    for (size_t i = 0; i < r->n_records; i++) exf_mem_free(r->record[i].file);
    exf_mem_free(r->record);
    free_hidden(&r->now);
    free_hidden(&r->next);
    exf_provenance_free(&r->facts);
    exf_resume_directory_close(&r->directory);
    exf_mem_free(r->path);
    pthread_mutex_destroy(&r->lock);
    exf_mem_free(r);
}

/* ---- outputs, removal ------------------------------------------------------------------------ */

exf_code exf_resume_claim_output(exf_resume *r, const char *name, exf_err *err)
{
    return exf_resume_directory_claim(&r->directory, name, err);
}

exf_code exf_resume_remove(exf_resume *r, exf_err *err)
{
    exf_code rc;
    if (r->follows) return EXF_OK;
    EXF_TRY(exf_resume_wait(r, err));
    if (r->directory.fd >= 0) /* before the files that it names */
        EXF_TRY(exf_resume_directory_drop(&r->directory, "resume.json", err));
    rc = exf_resume_directory_remove(&r->directory, err);
out:
    return rc;
}
