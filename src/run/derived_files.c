/* derived_files.c - see derived_files.h. */
#include "run/derived_files.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/output_directory.h"
#include "export/writer.h"
#include "recipe/announce.h"

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

/* A folder may hold files that people added; a card is text that they may have edited. */
static exf_code visit_export(const walk *w, const exf_writer *x, exf_err *err)
{
    exf_text marked = {0};
    exf_code rc;
    EXF_TRY(exf_text_addf(&marked, err, "%s%s", x->file, x->is_directory ? "/provenance.json" : ""));
    exf_derived_file f = {x->file, marked.s, x->is_directory || strcmp(x->name, "card") == 0, x->name};
    rc = visit_present(w, &f, err);
out:
    exf_text_free(&marked);
    return rc;
}

/* Reports have names of their users' choice. */
static exf_code visit_page(void *self, const char *name, exf_err *err)
{
    const walk *w = self;
    exf_derived_file f = {name, name, 1, NULL};
    return exf_ends_with(name, ".html") ? w->visit(w->self, &f, err) : EXF_OK;
}

exf_code exf_derived_each(const char *directory, exf_derived_visit visit, void *self, exf_err *err)
{
    walk w = {directory, visit, self};
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) EXF_TRY(visit_present(&w, &results[i], err));
    for (size_t i = 0; exf_writer_at(i); i++) EXF_TRY(visit_export(&w, exf_writer_at(i), err));
    rc = exf_each_file(directory, visit_page, &w, err);
out:
    return rc;
}

/* ---- whose a file is -------------------------------------------------------------------------- */

enum { MAX_VALIDATION = 64 << 20 };

static exf_code holds(const char *path, const char *word, int *does, exf_err *err)
{
    char *text = NULL;
    size_t n;
    exf_code rc = exf_file_slurp(path, MAX_VALIDATION, &text, &n, err);
    *does = rc == EXF_OK && strstr(text, word) != NULL;
    exf_mem_free(text);
    return rc;
}

/* A validation.json of an earlier program does not say of which tables it is. */
static exf_code is_ours(const char *path, int *ours, exf_err *err)
{
    *ours = 0;
    return exf_ends_with(path, ".json") ? holds(path, "\"exfold-validation/", ours, err) : EXF_OK;
}

/* Returns in *proved whether a file that names the digest of tables was made of them by a program of ours: a regular file, in
 * which the digest stands as our writers put it.  What somebody else made may name it too. */
static exf_code prove(const char *path, const exf_derived_file *f, const char *hex, int *proved, exf_err *err)
{
    exf_path_kind kind;
    exf_text comment = {0};
    exf_code rc;
    *proved = 0;
    EXF_TRY(exf_path_look_at(path, &kind, err));
    if (kind != EXF_PATH_FILE || f->kept) goto out;
    EXF_TRY(exf_made_from_comment(&comment, hex, err));
    if (!f->target && exf_ends_with(f->name, ".json"))
        rc = is_ours(path, proved, err);
    else if (!f->target)
        rc = holds(path, comment.s, proved, err);
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

static int is_rewritten(const replacement *r, const exf_derived_file *f)
{
    if (!f->target || !r->rewritten) return 0;
    for (size_t i = 0; i < r->rewritten->n; i++)
        if (strcmp(r->rewritten->item[i], f->target) == 0) return 1;
    return strcmp(f->target, RECIPE) == 0;
}

static exf_code remove_file(const char *path, int quiet, exf_err *err)
{
    if (unlink(path) != 0) return exf_fail_errno(err, errno, "%s: is of tables that were replaced and cannot be removed", path);
    if (!quiet) {
        printf("removed ");
        exf_print_text(path, 0);
        printf("  made from the tables that were replaced\n");
    }
    return EXF_OK;
}

/* Pages without a mark are none of ours. */
static void tell(const char *path, const char *hex, int own)
{
    if (own)
        exf_log_warn("%s: was made from the tables that were replaced; it stays, since it may have been edited", path);
    else if (*hex)
        exf_log_warn("%s: was made from other tables (digest %.12s...) than those that are here now", path, hex);
    else if (!exf_ends_with(path, ".html"))
        exf_log_warn("%s: does not say from which tables it was made; those that are here now are new", path);
}

static exf_code judge(void *self, const exf_derived_file *f, exf_err *err)
{
    const replacement *r = self;
    char *path = NULL, *marked = NULL, hex[EXF_SHA256_HEX];
    exf_code rc;
    EXF_TRY(exf_path_join(&path, r->directory, f->name, err));
    EXF_TRY(exf_path_join(&marked, r->directory, f->marked, err));
    EXF_TRY(exf_made_from(marked, hex, err));
    int rewritten = is_rewritten(r, f), own = *hex && strcmp(hex, r->old) == 0, proved = 0;
    if (strcmp(hex, r->now) == 0 || (rewritten && !own)) goto out;
    if (own) EXF_TRY(prove(path, f, r->old, &proved, err));
    if (proved)
        rc = remove_file(path, rewritten, err);
    else if (!rewritten)
        tell(path, hex, own);
out:
    exf_mem_free(path);
    exf_mem_free(marked);
    return rc;
}

exf_code exf_derived_drop(const char *directory, const char *old, const char *now, const exf_text_list *rewritten, exf_err *err)
{
    replacement r = {directory, old, now, rewritten};
    if (!*old || strcmp(old, now) == 0) return EXF_OK;
    return exf_derived_each(directory, judge, &r, err);
}

/* ---- before a validation is shown with tables ----------------------------------------------- */

static exf_code refuse(const char *path, const char *hex, const char *tables, const char *directory, const char *digest,
                       exf_err *err)
{
    char *recipe = NULL;
    exf_code rc;
    int found;
    EXF_TRY(exf_path_join(&recipe, directory, "exfold_recipe.yaml", err));
    EXF_TRY(exf_path_look(recipe, &found, err));
    rc = exf_fail(err, EXF_MODEL, "%s: is of tables with the digest %s, %s has %s; validate again: exfold-validate %s --output %s "
                  "--tables %s --force", path, *hex ? hex : "(none is named)", tables, digest,
                  found ? recipe : "RECIPE.yaml", directory, tables);
out:
    exf_mem_free(recipe);
    return rc;
}

exf_code exf_derived_check_validation(const char *tables, const char *digest, exf_err *err)
{
    static const char *const files[] = {"validation.json", "validation.md"};
    char *directory = NULL, *path = NULL, hex[EXF_SHA256_HEX];
    exf_code rc;
    EXF_TRY(exf_path_dir(&directory, tables, err));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int ours, found;
        exf_mem_free(path);
        path = NULL;
        EXF_TRY(exf_path_join(&path, directory, files[i], err));
        EXF_TRY(exf_path_look(path, &found, err));
        if (!found) continue;
        EXF_TRY(exf_made_from(path, hex, err));
        EXF_TRY(is_ours(path, &ours, err));
        if (*hex ? strcmp(hex, digest) != 0 : ours) EXF_TRY(refuse(path, hex, tables, directory, digest, err));
    }
out:
    exf_mem_free(directory);
    exf_mem_free(path);
    return rc;
}
