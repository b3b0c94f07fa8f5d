/* fuzz_manifest.c - libFuzzer target: any bytes are read as a data manifest, whose
 * sources are then whole and share a run's sequences, or refused with file and line.
 * Where every source is the file "a", which is there, the manifest is pinned too: what
 * that writes says the same of the same sources, and their checksum.
 *   make fuzz FUZZ=manifest SECONDS=60 */
#include "capture/manifest.h"
#include "tests/fuzz/scratch.h"

static const char sha_of_abc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

static void look_at(const exf_manifest_source *s)
{
    must(s->label && s->path && s->path[0] && s->file && s->domain && s->sequences >= 0 && s->sequences <= EXF_MAX_SEQUENCES);
    must((s->format != EXF_SOURCE_JSONL || s->field) && (s->format == EXF_SOURCE_TOKENS || !s->tensor));
    for (size_t i = 0; i < s->n_where; i++) must(s->where_key[i] && s->where_value[i]);
    must(strlen(s->sha256) == 0 || strlen(s->sha256) == EXF_SHA256_HEX - 1);
}

static void share(const exf_manifest *m, int64_t total)
{
    exf_err err = {EXF_OK, ""};
    int64_t *want = calloc(m->n, sizeof *want), sum = 0;
    must(want != NULL);
    exf_code rc = exf_manifest_shares(m, total, want, &err);
    must(rc == EXF_OK || ((rc == EXF_USAGE || rc == EXF_MODEL || rc == EXF_FORMAT) && err.msg[0]));
    for (size_t i = 0; rc == EXF_OK && i < m->n; i++) {
        must(want[i] >= -1 && want[i] <= EXF_MAX_SEQUENCES);
        sum += want[i];
    }
    must(rc != EXF_OK || total == 0 || sum == total);
    free(want);
}

/* Other paths may lead anywhere on this machine. */
static int all_files_exist(const exf_manifest *m)
{
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->source[i].path, "a") != 0) return 0;
    return 1;
}

static void pin(const exf_manifest *before, const char *path)
{
    exf_err err = {EXF_OK, ""};
    exf_manifest *m;
    char a[sizeof scratch_dir + 2];
    int n = -1;
    snprintf(a, sizeof a, "%s/a", scratch_dir);
    put_file(a, "abc", 3);
    exf_code rc = exf_manifest_pin(path, &n, &err);
    unlink(a);
    must(rc == EXF_OK || ((rc == EXF_USAGE || rc == EXF_MODEL || rc == EXF_FORMAT) && err.msg[0]));
    if (rc != EXF_OK) return;
    must(exf_manifest_load(&m, path, &err) == EXF_OK && m->n == before->n && n >= 0 && (size_t)n <= m->n);
    for (size_t i = 0; i < m->n; i++) {
        must(strcmp(m->source[i].sha256, sha_of_abc) == 0 && strcmp(m->source[i].path, "a") == 0);
        must(m->source[i].format == before->source[i].format && strcmp(m->source[i].domain, before->source[i].domain) == 0);
    }
    exf_manifest_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    exf_err err = {EXF_OK, ""};
    exf_manifest *m;
    const char *path = put_input("m.yaml", bytes, size);
    exf_code rc = exf_manifest_load(&m, path, &err);
    if (rc != EXF_OK) {
        must(rc == EXF_USAGE || (rc == EXF_FORMAT && strstr(err.msg, "is a git-lfs pointer")));
        must(!m && strncmp(err.msg, path, strlen(path)) == 0);
        return 0;
    }
    must(m->n >= 1);
    for (size_t i = 0; i < m->n; i++) look_at(&m->source[i]);
    share(m, 0);
    share(m, 7);
    share(m, EXF_MAX_SEQUENCES);
    if (all_files_exist(m)) pin(m, path);
    exf_manifest_free(m);
    return 0;
}
