/* run_directory_derived.c - knows which files of a directory are made from the tables there, and keeps those of other tables
 * from being taken for them; see run_directory.h. */
#include "recipe/run_directory.h"

#include "artifact/provenance.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "export/writer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- the list -------------------------------------------------------------------------- */

#define RECIPE "recipe" /* no export target: a run that exports the tables that it made writes its recipe too */

static const exf_derived_file results[] = {
    {"validation.json", "validation.json", 0, NULL}, {"validation.md", "validation.md", 0, NULL},
    {"frontier.json", "frontier.json", 0, NULL},     {"frontier.md", "frontier.md", 0, NULL},
    {"frontier.svg", "frontier.svg", 0, NULL},       {"exfold_recipe.yaml", "exfold_recipe.yaml", 1, RECIPE},
};

typedef struct {
    const char *directory;
    exf_derived_visit visit;
    void *self;
} walk;

static exf_code visit_present(const walk *w, const exf_derived_file *f, exf_err *err)
{
    char *path = NULL;
    int found = 0;
    exf_code rc = exf_path_join(&path, w->directory, f->name, err);
    if (rc == EXF_OK) rc = exf_path_look(path, &found, err);
    if (found) rc = w->visit(w->self, f, err);
    exf_mem_free(path);
    return rc;
}

/* Visits a report, whose name its user chose. */
static exf_code visit_page(void *self, const char *name, exf_err *err)
{
    const walk *w = self;
    exf_derived_file f = {name, name, 1, NULL};
    return exf_ends_with(name, ".html") ? w->visit(w->self, &f, err) : EXF_OK;
}

exf_code exf_derived_each(const char *directory, exf_derived_visit visit, void *self, exf_err *err)
{
    walk w = {directory, visit, self};
    exf_text marked = {0};
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) EXF_TRY(visit_present(&w, &results[i], err));
    for (size_t i = 0; exf_writer_at(i); i++) {
        const exf_writer *x = exf_writer_at(i);
        marked.len = 0;
        exf_text_appendf(&marked, "%s%s", x->file, x->is_directory ? "/provenance.json" : "");
        EXF_TRY(exf_text_end(&marked, err));
        /* People may have added files to a folder and edited the text of a card. */
        exf_derived_file f = {x->file, marked.s, x->is_directory || strcmp(x->name, "card") == 0, x->name};
        EXF_TRY(visit_present(&w, &f, err));
    }
    rc = exf_each_file(directory, visit_page, &w, err);
out:
    exf_text_free(&marked);
    return rc;
}

/* ---- who made a file --------------------------------------------------------------------------- */

enum { MAX_VALIDATION = 64 << 20 };

static exf_code file_holds(const char *path, const char *word, int *does, exf_err *err)
{
    char *text = NULL;
    size_t n;
    exf_code rc = exf_file_slurp(path, MAX_VALIDATION, &text, &n, err);
    *does = rc == EXF_OK && strstr(text, word) != NULL;
    exf_mem_free(text);
    return rc;
}

/* Looks for the schema: a validation.json of an earlier version does not name its tables. */
static exf_code is_our_json(const char *path, int *ours, exf_err *err)
{
    *ours = 0;
    return exf_ends_with(path, ".json") ? file_holds(path, "\"exfold-validation/", ours, err) : EXF_OK;
}

/* Sets *proved to 1 if a program of ours made the file from the tables of this digest: it is a regular file in which the digest
 * is written as our writers write it.  A file that somebody else made may name the digest too. */
static exf_code prove_made_by_us(const char *path, const exf_derived_file *f, const char *hex, int *proved, exf_err *err)
{
    exf_path_kind kind;
    exf_text comment = {0};
    exf_code rc;
    *proved = 0;
    EXF_TRY(exf_path_look_at(path, &kind, err));
    if (kind != EXF_PATH_FILE || f->kept) goto out;
    EXF_TRY(exf_made_from_comment(&comment, hex, err));
    if (!f->target && exf_ends_with(f->name, ".json"))
        rc = is_our_json(path, proved, err);
    else if (!f->target)
        rc = file_holds(path, comment.s, proved, err);
    else
        *proved = 1;
out:
    exf_text_free(&comment);
    return rc;
}

/* ---- after tables were replaced ----------------------------------------------------------- */

typedef struct {
    const char *directory, *old, *now;
    const exf_text_list *rewritten;
} replacement;

/* Removes a file that was made from the replaced tables, if that is proved; warns of a file that stays and is not of the present
 * tables.  An HTML page without a digest is not one of our reports. */
static exf_code judge_file(void *self, const exf_derived_file *f, exf_err *err)
{
    const replacement *r = self;
    char *path = NULL, *marked = NULL, hex[EXF_SHA256_HEX];
    exf_code rc;
    EXF_TRY(exf_path_join(&path, r->directory, f->name, err));
    EXF_TRY(exf_path_join(&marked, r->directory, f->marked, err));
    EXF_TRY(exf_made_from(marked, hex, err));
    int rewritten = r->rewritten && f->target && strcmp(f->target, RECIPE) == 0, own = *hex && strcmp(hex, r->old) == 0, proved = 0;
    for (size_t i = 0; r->rewritten && f->target && i < r->rewritten->n; i++)
        rewritten |= strcmp(r->rewritten->item[i], f->target) == 0;
    if (strcmp(hex, r->now) == 0 || (rewritten && !own)) goto out;
    if (own) EXF_TRY(prove_made_by_us(path, f, r->old, &proved, err));
    if (proved && unlink(path) != 0) {
        rc = exf_fail_errno(err, errno, "%s: is of tables that were replaced and cannot be removed", path);
    } else if (rewritten) {
        goto out; /* the run announces the new one */
    } else if (proved) {
        printf("removed ");
        exf_print_text(path, 0);
        printf("  made from the tables that were replaced\n");
    } else if (own) {
        exf_log_warn("%s: was made from the tables that were replaced; it stays, since it may have been edited", path);
    } else if (*hex) {
        exf_log_warn("%s: was made from other tables (digest %.12s...) than those that are here now", path, hex);
    } else if (!exf_ends_with(path, ".html")) {
        exf_log_warn("%s: does not say from which tables it was made; those that are here now are new", path);
    }
out:
    exf_mem_free(path);
    exf_mem_free(marked);
    return rc;
}

exf_code exf_derived_drop(const char *directory, const char *old, const char *now, const exf_text_list *rewritten, exf_err *err)
{
    replacement r = {directory, old, now, rewritten};
    if (!*old || strcmp(old, now) == 0) return EXF_OK;
    return exf_derived_each(directory, judge_file, &r, err);
}

/* ---- before a validation is shown with tables ----------------------------------------------- */

exf_code exf_derived_check_validation(const char *tables, const char *digest, exf_err *err)
{
    static const char *const files[] = {"validation.json", "validation.md", "frontier.json"};
    char *directory = NULL, *recipe = NULL, *path = NULL, hex[EXF_SHA256_HEX];
    exf_code rc;
    int ours, found;
    EXF_TRY(exf_path_dir(&directory, tables, err));
    EXF_TRY(exf_path_join(&recipe, directory, "exfold_recipe.yaml", err));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        exf_mem_free(path);
        path = NULL;
        EXF_TRY(exf_path_join(&path, directory, files[i], err));
        EXF_TRY(exf_path_look(path, &found, err));
        if (!found) continue;
        EXF_TRY(exf_made_from(path, hex, err));
        EXF_TRY(is_our_json(path, &ours, err));
        if (*hex ? strcmp(hex, digest) == 0 : !ours) continue;
        EXF_TRY(exf_path_look(recipe, &found, err));
        rc = exf_fail(err, EXF_MODEL, "%s: is of tables with the digest %s, %s has %s; validate again: exfold-validate %s "
                      "--output %s --tables %s --force%s", path, *hex ? hex : "(none is named)", tables, digest,
                      found ? recipe : "RECIPE.yaml", directory, tables, strcmp(files[i], "frontier.json") ? "" : " --frontier");
        goto out;
    }
out:
    exf_mem_free(directory);
    exf_mem_free(recipe);
    exf_mem_free(path);
    return rc;
}
