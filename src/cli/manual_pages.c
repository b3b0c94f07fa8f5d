/* manual_pages.c - the pages of recipes, manifests, variants and exit statuses, each as a manual page
 * and as Markdown; see manual.h. */
#include "cli/manual.h"

#include "capture/manifest.h"
#include "fold/variant.h"
#include "cli/page.h"
#include "cli/programs.h"
#include "recipe/recipe.h"

#include <string.h>

/* ---- exfold-recipe(5) -------------------------------------------------------------- */

static exf_code add_code(exf_text *out, const char *s, exf_err *err)
{
    return exf_text_addf(out, err, "%s`%s`", out->len ? ", " : "", s);
}

/* `runtime.threads` = N, `-t`, `--threads` */
static exf_code recipe_label(const exf_opt *row, exf_text *out, exf_err *err)
{
    exf_code rc;
    char letter[3] = {'-', row->letter, 0};
    EXF_TRY(add_code(out, row->key, err));
    EXF_TRY(exf_text_addf(out, err, " = %s", exf_opt_placeholder(row)));
    if (row->letter) EXF_TRY(add_code(out, letter, err));
    if (row->flag) rc = exf_text_addf(out, err, ", `--%s`", row->flag);
out:
    return rc;
}

/* The text of a key, and the words or the range that its value has. */
static exf_code recipe_meaning(const exf_opt *row, exf_text *out, exf_err *err)
{
    exf_opt shown = *row;
    shown.flag = NULL; /* the label names it */
    shown.fallback = NULL;
    return exf_opt_remarks(&shown, out, err);
}

static exf_code recipe_row(const exf_page *p, const exf_opt *row, exf_err *err)
{
    exf_code rc;
    exf_text label = {0}, fallback = {0}, meaning = {0};
    EXF_TRY(recipe_label(row, &label, err));
    if (row->fallback) EXF_TRY(add_code(&fallback, row->fallback, err));
    EXF_TRY(recipe_meaning(row, &meaning, err));
    rc = exf_page_row(p, label.s, fallback.s ? fallback.s : "", meaning.s, err);
out:
    exf_text_free(&label);
    exf_text_free(&fallback);
    exf_text_free(&meaning);
    return rc;
}

static exf_code recipe_rows(const exf_page *p, const exf_opt *rows, size_t n, exf_err *err)
{
    exf_code rc = EXF_OK;
    const char *heading = NULL;
    for (size_t i = 0; i < n; i++) {
        const char *group = rows[i].group ? rows[i].group : "Options";
        if (!rows[i].key) continue;
        if (!heading || strcmp(heading, group) != 0) {
            EXF_TRY(exf_page_heading(p, group, err));
            EXF_TRY(exf_page_table(p, "key", "default", "meaning", err));
        }
        heading = group;
        EXF_TRY(recipe_row(p, &rows[i], err));
    }
out:
    return rc;
}

/* Adds the keys that each program reads; a section stands for all of its keys. */
static exf_code recipe_readers(const exf_page *p, exf_err *err)
{
    const exf_program *program;
    exf_code rc;
    EXF_TRY(exf_page_heading(p, "Who reads what", err));
    EXF_TRY(exf_page_text(p, "A section's name stands for all of its keys.", err));
    EXF_TRY(exf_page_table(p, "program", NULL, "keys", err));
    for (size_t i = 0; (program = exf_program_at(i)); i++) {
        exf_text label = {0};
        if (!program->keys) continue;
        rc = add_code(&label, program->name, err);
        if (rc == EXF_OK) rc = exf_page_row(p, label.s, NULL, program->keys, err);
        exf_text_free(&label);
        if (rc != EXF_OK) goto out;
    }
out:
    return rc;
}

static exf_code recipe_page(const exf_program *program, const exf_page *p, exf_err *err)
{
    size_t n;
    const exf_opt *rows = exf_recipe_key_rows(&n);
    static const char *const see[] = {"exfold (7)", "exfold-calibrate (1)", "exfold-manifest (5)", "exfold-variants (7)"};
    exf_code rc;
    if (!program->keys) return exf_fail(err, EXF_USAGE, "%s reads no recipe", program->name);
    EXF_TRY(exf_page_title(p, "exfold-recipe", 5, "everything a calibration is told", err));
    EXF_TRY(exf_page_description(
        p,
        "A recipe is a YAML map with `schema: exfold-recipe/1`.  A dotted key stands in the section before\n"
        "its dot.  One recipe serves all programs: each reads the keys that its `--help-keys` lists, and takes\n"
        "those on the command line too, with `--set KEY=VALUE` or, where a key has one, its flag.  The command\n"
        "line beats the recipe, the recipe beats the default.  An unknown key is an error that names the nearest\n"
        "known one.  Paths in a recipe are relative to the recipe's file, paths on the command line to the working\n"
        "directory.\n"
        "Lists are written `[a, b]`, or `a,b` on the command line; the empty list is `[]`.",
        err));
    EXF_TRY(exf_page_section(p, "KEYS", err));
    EXF_TRY(recipe_rows(p, rows, n, err));
    EXF_TRY(recipe_readers(p, err));
    EXF_TRY(exf_page_example(p, "yaml",
                             "schema: exfold-recipe/1\n"
                             "model: {path: model}\n"
                             "data: {manifest: manifest.yaml, max_tokens: 32, seed: 1}\n"
                             "calibrate: {weighting: source_norm, ridge: 1.0e-3, clip: [-4, 4]}\n"
                             "pools: [2]\n"
                             "output: {directory: out, targets: [safetensors]}",
                             err));
    rc = exf_page_see_also(p, see, sizeof see / sizeof *see, err);
out:
    return rc;
}

/* ---- exfold-manifest(5) ------------------------------------------------------------ */

typedef struct {
    const char *name, *fallback, *about;
} key_text;

static exf_code key_table(const exf_page *p, const char *heading, const key_text *key, size_t n, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_page_heading(p, heading, err));
    EXF_TRY(exf_page_table(p, "key", "default", "meaning", err));
    for (size_t i = 0; i < n; i++) {
        exf_text label = {0};
        rc = add_code(&label, key[i].name, err);
        if (rc == EXF_OK) rc = exf_page_row(p, label.s, key[i].fallback ? key[i].fallback : "required", key[i].about, err);
        exf_text_free(&label);
        if (rc != EXF_OK) goto out;
    }
out:
    return rc;
}

static exf_code format_list(const exf_page *p, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_page_heading(p, "Formats", err));
    EXF_TRY(exf_page_table(p, "format", NULL, "the file", err));
#define X(name, fallback, about) EXF_TRY(exf_page_row(p, "`" name "`", NULL, about, err));
    EXF_MANIFEST_FORMATS(X)
#undef X
out:
    return rc;
}

static exf_code manifest_page(const exf_page *p, exf_err *err)
{
#define X(name, fallback, about) {name, fallback, about},
    static const key_text source[] = {EXF_MANIFEST_SOURCE_KEYS(X)}, origin[] = {EXF_MANIFEST_ORIGIN_KEYS(X)};
#undef X
    static const char *const see[] = {"exfold (7)", "exfold-recipe (5)", "exfold-capture (1)"};
    exf_code rc;
    EXF_TRY(exf_page_title(p, "exfold-manifest", 5, "where the text of a calibration comes from", err));
    EXF_TRY(exf_page_description(
        p,
        "A manifest is a YAML map with `schema: exfold-manifest/1` and a list `sources`, each a map with the keys\n"
        "below.  Paths are relative to the manifest's file.  An unknown key is an error that names the nearest\n"
        "known one, and so is a key that the source's format has no use for.\n\n"
        "Documents never share a sequence and nothing is padded.  A document is tokenised and cut into pieces of\n"
        "`data.max_tokens`, the last one shorter; what is below `data.min_tokens` is dropped.  A source with more\n"
        "sequences than asked for gives a seeded choice without replacement, in file order.  If `data.sequences`\n"
        "differs from the sum of the sources', it is shared in proportion; sources without `sequences` share evenly\n"
        "what the others leave.",
        err));
    EXF_TRY(exf_page_section(p, "KEYS", err));
    EXF_TRY(key_table(p, "Keys of a source", source, sizeof source / sizeof *source, err));
    EXF_TRY(format_list(p, err));
    EXF_TRY(key_table(p, "Keys of an origin", origin, sizeof origin / sizeof *origin, err));
    EXF_TRY(exf_page_example(p, "yaml",
                             "schema: exfold-manifest/1\n"
                             "sources:\n"
                             "  - path: corpus.jsonl\n"
                             "    format: jsonl\n"
                             "    field: text\n"
                             "    where: {domain: c}\n"
                             "    domain: c\n"
                             "    sequences: 16\n"
                             "    sha256: unpinned",
                             err));
    rc = exf_page_see_also(p, see, sizeof see / sizeof *see, err);
out:
    return rc;
}

/* ---- exfold-variants(7) ------------------------------------------------------------ */

static exf_code variant_option_row(const exf_page *p, const exf_variant_option *o, exf_err *err)
{
    exf_code rc;
    exf_text label = {0};
    EXF_TRY(exf_text_addf(&label, err, "`%s%s%s`", o->name, o->values ? "=" : "", o->values ? o->values : ""));
    rc = exf_page_row(p, label.s, o->fallback, o->about, err);
out:
    exf_text_free(&label);
    return rc;
}

static exf_code variant_kind(const exf_page *p, const exf_variant_kind *kind, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_page_heading(p, kind->example, err));
    EXF_TRY(exf_page_text(p, kind->about, err));
    if (!kind->options->name) return EXF_OK;
    EXF_TRY(exf_page_table(p, "option", "default", "meaning", err));
    for (const exf_variant_option *o = kind->options; o->name; o++) EXF_TRY(variant_option_row(p, o, err));
out:
    return rc;
}

static exf_code variants_page(const exf_page *p, exf_err *err)
{
    static const char *const see[] = {"exfold (7)", "exfold-recipe (5)", "exfold-validate (1)"};
    exf_code rc;
    EXF_TRY(exf_page_title(p, "exfold-variants", 7, "ways to run a model with fewer experts", err));
    EXF_TRY(exf_page_description(
        p,
        "A variant is a kind with its number, options after a colon, separated by commas:\n"
        "`P4:rank=score,max_loss=0.99`.  A prefill and a decode kind are joined by a plus: `P4+D64`.  An option\n"
        "stands once.  The recipe key `validate.variants` and the option `--variants` of exfold-validate list them.\n\n"
        "`diagonal` and `lowrank` act on vectors and are what scalars are compared with; they join a `D` or `sere`\n"
        "only where `validate.prefill_tokens` separates the two.  `joint` solves for the weights that best stand in\n"
        "for all omitted experts together, from the mean Gram matrix, and is still router metadata only.  Shared\n"
        "experts are never folded, hash-routed layers only as a runtime does that folds them (`serve.runtime`).\n\n"
        "A budget per token (`P4:budget=token`) keeps 4 routes in the mean, fewer where the kept ones say nearly\n"
        "everything; what it ran on the validation's text stands beside it as experts per token.  With\n"
        "`targets=router` the router itself chooses what stands in for a route outside the pool; `weights=route` and\n"
        "`weights=gate` are what runtimes do without tables: REAP's survivors and batch-aware rerouting renormalise,\n"
        "a cache of resident experts does not (github.com/JustVugg/colibri, pull request 906).\n\n"
        "In the tables below w is a route's weight, h the mean norm of its expert's output, rms the root mean square\n"
        "of that norm.",
        err));
    EXF_TRY(exf_page_section(p, "KINDS", err));
    for (size_t i = 0; exf_variant_kind_at(i); i++) EXF_TRY(variant_kind(p, exf_variant_kind_at(i), err));
    rc = exf_page_see_also(p, see, sizeof see / sizeof *see, err);
out:
    return rc;
}

/* ---- exit statuses ------------------------------------------------------------------- */

/* The lists of base/err.h in one, by number. */
static const struct { int number; const char *spelled, *text; } statuses[] = {
#define X(name, value, text) {value, "`" #value "`", text},
    EXF_CODES(X)
#undef X
#define X(value, text) {value, "`" #value "`", text},
    EXF_SIGNAL_STATUSES(X)
#undef X
};

static exf_code status_list(const exf_page *p, exf_err *err)
{
    const size_t n = sizeof statuses / sizeof *statuses;
    exf_code rc;
    EXF_TRY(exf_page_table(p, "status", NULL, "meaning", err));
    for (int number = 0; number < 256; number++) {
        size_t i = 0;
        while (i < n && statuses[i].number != number) i++;
        if (i < n) EXF_TRY(exf_page_row(p, statuses[i].spelled, NULL, statuses[i].text, err));
    }
out:
    return rc;
}

/* ---- both forms ----------------------------------------------------------------------- */

exf_code exf_manual_recipe(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err)
{
    (void)rows;
    (void)n;
    return recipe_page(p, &(exf_page){EXF_PAGE_MAN, out}, err);
}

exf_code exf_markdown_recipe(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err)
{
    (void)rows;
    (void)n;
    return recipe_page(p, &(exf_page){EXF_PAGE_MARKDOWN, out}, err);
}

/* Pages that depend on no program's options. */
#define PAGE(name, form, add)                                                                              \
    exf_code name(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err)        \
    {                                                                                                      \
        (void)p;                                                                                           \
        (void)rows;                                                                                        \
        (void)n;                                                                                           \
        return add(&(exf_page){form, out}, err);                                                           \
    }
PAGE(exf_manual_manifest, EXF_PAGE_MAN, manifest_page)
PAGE(exf_markdown_manifest, EXF_PAGE_MARKDOWN, manifest_page)
PAGE(exf_manual_variants, EXF_PAGE_MAN, variants_page)
PAGE(exf_markdown_variants, EXF_PAGE_MARKDOWN, variants_page)
PAGE(exf_manual_status, EXF_PAGE_MAN, status_list)
PAGE(exf_markdown_status, EXF_PAGE_MARKDOWN, status_list)
