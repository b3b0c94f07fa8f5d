/* inspect_verify.c - checks files, and all that a run wrote into a directory; see inspect.h. */
#include "artifact/provenance.h"
#include "artifact/tables.h"
#include "cli/inspect.h"
#include "export/writer.h"
#include "inspect/verify.h"
#include "recipe/run_directory.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "run/session.h"

#include <stdio.h>
#include <string.h>

enum { KINDS = 3 };
static const char *const artifact_name[KINDS] = {"tables.h5", "statistics.h5", "capture.h5"};

/* The stages that resume, by the names of their points, and what runs them. */
static const struct { const char *stage, *program; } resumes[] = {
    {"calibrate", "exfold-calibrate"},
    {"validate", "exfold-validate"},
    {"capture", "exfold-capture"},
};

/* The files that are to be verified, and who is told what held. */
typedef struct {
    char **path; /* files */
    size_t n;
    exf_verify_callback held;
    void *self;
    /* of the directory that is looked at */
    const char *directory, *tables;
    char digest[EXF_SHA256_HEX];
} verification;

static exf_code refuse_unended(const char *directory, exf_err *err)
{
    exf_text path = {0};
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < sizeof resumes / sizeof *resumes; i++) {
        int there = 0;
        path.len = 0;
        exf_text_appendf(&path, "%s/" EXF_RUN_RESUME_PREFIX "%s", directory, resumes[i].stage);
        EXF_TRY(exf_text_end(&path, err));
        EXF_TRY(exf_path_is_directory(path.s, &there, err));
        if (!there) continue;
        rc = exf_fail(err, EXF_FORMAT, "%s: a run of %s has not ended here (" EXF_RUN_RESUME_PREFIX "%s); the same command goes on",
                      directory, resumes[i].program, resumes[i].stage);
        goto out;
    }
out:
    exf_text_free(&path);
    return rc;
}

static exf_code add_artifacts(verification *v, const char *directory, exf_err *err)
{
    size_t before = v->n;
    exf_code rc;
    EXF_TRY(refuse_unended(directory, err));
    for (int k = 0; k < KINDS; k++) {
        char *path = NULL;
        int found = 0;
        EXF_TRY(exf_path_join(&path, directory, artifact_name[k], err));
        rc = exf_path_look(path, &found, err);
        if (found)
            v->path[v->n++] = path;
        else
            exf_mem_free(path);
        if (rc != EXF_OK) return rc;
    }
    if (v->n == before)
        rc = exf_fail(err, EXF_IO, "%s: holds no tables.h5, statistics.h5 or capture.h5", directory);
out:
    return rc;
}

/* Checks a file that has no place for the digest of the tables by what it holds. */
static exf_code check_unmarked(const verification *v, const exf_writer *w, const char *path, exf_err *err)
{
    exf_tables t = {.n_layers = 0};
    int is;
    exf_code rc;
    EXF_TRY(exf_tables_read(&t, v->tables, err));
    EXF_TRY(w->is_of(&t, path, &is, err));
    if (!is)
        rc = exf_fail(err, EXF_FORMAT, "%s: is not what target %s writes of %s, with any settings; make it again, or remove it",
                      path, w->name, v->tables);
out:
    exf_tables_free(&t);
    return rc;
}

/* A derived file must name the digest of the tables, or hold what follows from them; a page without one is none of ours. */
static exf_code check_derived(void *self, const exf_derived_file *f, exf_err *err)
{
    const verification *v = self;
    const exf_writer *w = f->target ? exf_writer_find(f->target) : NULL;
    char *marked = NULL, hex[EXF_SHA256_HEX];
    exf_text sentence = {0};
    exf_code rc;
    EXF_TRY(exf_path_join(&marked, v->directory, f->marked, err));
    EXF_TRY(exf_made_from(marked, hex, err));
    if (!*hex && exf_ends_with(f->name, ".html")) goto out;
    if (w && w->is_of) {
        EXF_TRY(check_unmarked(v, w, marked, err));
    } else if (strcmp(hex, v->digest) != 0) {
        rc = exf_fail(err, EXF_FORMAT, "%s/%s: was made from tables with the digest %s, %s has %s; make it again, or remove it",
                      v->directory, f->name, *hex ? hex : "(none is named)", v->tables, v->digest);
        goto out;
    }
    const char *relation = w && w->is_of ? "is what would be exported of" : "was made from";
    exf_text_appendf(&sentence, "%s/%s: %s %s", v->directory, f->name, relation, v->tables);
    EXF_TRY(exf_text_end(&sentence, err));
    rc = v->held(v->self, sentence.s, err);
out:
    exf_text_free(&sentence);
    exf_mem_free(marked);
    return rc;
}

static exf_code verify_derived(verification *v, const char *directory, exf_err *err)
{
    char *tables = NULL;
    int found;
    exf_code rc;
    EXF_TRY(exf_path_join(&tables, directory, "tables.h5", err));
    EXF_TRY(exf_path_look(tables, &found, err));
    if (!found) goto out;
    v->directory = directory;
    v->tables = tables;
    EXF_TRY(exf_artifact_digest(tables, &exf_artifact_tables, v->digest, err));
    rc = exf_derived_each(directory, check_derived, v, err);
out:
    exf_mem_free(tables);
    return rc;
}

/* Says of a failure that a program is writing in the directory of one of the paths, where one is: files that it has not ended are
 * not corrupt, and its next file need not fit those of before. */
static exf_code blame_writer(const char *const *paths, size_t n, exf_code rc, exf_err *err)
{
    for (size_t i = 0; i < n; i++) {
        char *directory = NULL;
        int is_directory = 0;
        exf_code ended = exf_path_is_directory(paths[i], &is_directory, NULL);
        if (ended == EXF_OK && !is_directory) ended = exf_path_dir(&directory, paths[i], NULL);
        if (ended == EXF_OK) ended = exf_run_directory_idle(is_directory ? paths[i] : directory, err);
        exf_mem_free(directory);
        if (ended == EXF_IO) return ended;
    }
    return rc;
}

/* Adds a file itself, or what a directory stands for. */
static exf_code add_input(verification *v, const char *path, exf_err *err)
{
    int directory;
    exf_code rc;
    EXF_TRY(exf_path_is_directory(path, &directory, err));
    if (directory) EXF_TRY(exf_run_directory_idle(path, err));
    if (directory) return add_artifacts(v, path, err);
    EXF_TRY(exf_mem_strdup(&v->path[v->n], path, "file to verify", err));
    v->n++;
out:
    return rc;
}

/* Refuses a path that is named twice, under whatever names: what is in it would be counted, and told, twice. */
static exf_code refuse_twice(const char *const *paths, size_t n, exf_err *err)
{
    char **real = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&real, n, sizeof *real, "paths", err));
    for (size_t i = 0; i < n; i++) {
        int found;
        EXF_TRY(exf_path_look(paths[i], &found, err));
        if (found) EXF_TRY(exf_path_real(&real[i], paths[i], err));
        for (size_t k = 0; found && k < i; k++)
            if (real[k] && strcmp(real[k], real[i]) == 0) {
                rc = exf_fail(err, EXF_USAGE, "%s: is %s, which was named before: name it once", paths[i], paths[k]);
                goto out;
            }
    }
out:
    for (size_t i = 0; real && i < n; i++) exf_mem_free(real[i]);
    exf_mem_free(real);
    return rc;
}

/* Verifies files as exf_verify() does.  A directory stands for the tables, statistics and capture in it;
 * it is moreover EXF_FORMAT if a run has not ended in it, or if a file that was made from tables
 * (recipe/run_directory.h) was made from others than its tables.h5; EXF_IO if it holds no artifact, or if a program is writing
 * in it. */
static exf_code verify_inputs(const char *const *paths, size_t n, exf_verify_callback held, void *self, exf_err *err)
{
    verification v = {.held = held, .self = self};
    exf_code rc;
    EXF_TRY(refuse_twice(paths, n, err));
    EXF_TRY(exf_mem_new(&v.path, n * KINDS, sizeof *v.path, "files to verify", err));
    for (size_t i = 0; i < n; i++) EXF_TRY(add_input(&v, paths[i], err));
    EXF_TRY(exf_verify((const char *const *)v.path, v.n, held, self, err));
    for (size_t i = 0; i < n; i++) {
        int directory;
        EXF_TRY(exf_path_is_directory(paths[i], &directory, err));
        if (directory) EXF_TRY(verify_derived(&v, paths[i], err));
    }
out:
    for (size_t i = 0; i < v.n; i++) exf_mem_free(v.path[i]);
    exf_mem_free(v.path);
    return rc == EXF_FORMAT ? blame_writer(paths, n, rc, err) : rc;
}

/* ---- text and JSON -------------------------------------------------------------------------- */

static exf_code print_line(void *self, const char *sentence, exf_err *err)
{
    (void)self;
    (void)err;
    printf("ok  ");
    exf_print_text(sentence, 0);
    printf("\n");
    return EXF_OK;
}

static exf_code add_member(void *self, const char *sentence, exf_err *err)
{
    (void)err;
    exf_jw_text(self, NULL, sentence);
    return EXF_OK;
}

exf_code exf_inspect_verify(exf_recipe *r, exf_err *err)
{
    if (!r->json) return verify_inputs(r->inputs, r->n_inputs, print_line, NULL, err);
    exf_jw w = {0};
    exf_err printing;
    exf_jw_open(&w, NULL, '{');
    exf_jw_open(&w, "held", '[');
    exf_code rc = verify_inputs(r->inputs, r->n_inputs, add_member, &w, err);
    exf_jw_close(&w);
    exf_jw_bool(&w, "ok", rc == EXF_OK);
    exf_jw_text(&w, "failed", rc == EXF_OK ? NULL : err->msg);
    exf_jw_close(&w);
    exf_code printed = exf_print_json(&w, &printing);
    if (rc == EXF_OK && printed != EXF_OK) *err = printing;
    return rc != EXF_OK ? rc : printed;
}
