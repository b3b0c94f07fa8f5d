/* exfold-inspect - shows what files are and hold, draws, compares and verifies them.  Its short commands, digest, spec,
 * schema and tokenize, are here; inspect.h has the others. */
#include "cli/inspect.h"
#include "cli/program.h"

#include "artifact/provenance.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "capture/corpus.h"
#include "capture/manifest.h"
#include "format/json.h"
#include "inspect/inspection.h"
#include "tokenizer/tokenizer.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- digest --------------------------------------------------------------------------------- */

static exf_code print_digest(exf_recipe *r, exf_err *err)
{
    exf_h5 *h = NULL;
    exf_jw w = {0};
    char digest[EXF_SHA256_HEX];
    exf_code rc;
    EXF_TRY(exf_artifact_open(&h, r->inputs[0], NULL, NULL, NULL, err));
    EXF_TRY(exf_h5_digest(h, digest, err));
    if (!r->json) {
        printf("%s\n", digest);
        goto out;
    }
    exf_jw_open(&w, NULL, '{');
    exf_jw_text(&w, "file", r->inputs[0]);
    exf_jw_text(&w, "digest", digest);
    exf_jw_close(&w);
    rc = exf_print_json(&w, err);
out:
    exf_h5_close(h);
    return rc;
}

/* ---- spec ----------------------------------------------------------------------------------- */

/* Without an argument a list of the kinds; as JSON all of them. */
static exf_code print_specifications(exf_recipe *r, exf_err *err)
{
    const char *wanted = r->n_inputs ? r->inputs[0] : NULL, *name, *line;
    int is_all = wanted ? strcmp(wanted, "all") == 0 : r->json;
    exf_text names = {0};
    exf_jw w = {0};
    exf_code rc = EXF_OK;
    if (wanted && !is_all && !exf_specification_line(wanted, 0)) {
        for (size_t i = 0; (name = exf_specification_name(i)); i++) exf_text_appendf(&names, "%s, ", name);
        EXF_TRY(exf_text_end(&names, err));
        rc = exf_fail(err, EXF_USAGE, "\"%s\" is no kind of file that this version knows; known: %sall", wanted, names.s);
        goto out;
    }
    if (!wanted && !r->json) {
        for (size_t i = 0; (name = exf_specification_name(i)); i++) printf("%-11s %s\n", name, exf_specification_line(name, 0));
        printf("\nexfold-inspect spec KIND prints one of them, exfold-inspect spec all prints all.\n");
        goto out;
    }
    exf_jw_open(&w, NULL, '{');
    for (size_t i = 0; (name = exf_specification_name(i)); i++) {
        if (!is_all && strcmp(wanted, name) != 0) continue;
        if (is_all && !r->json) printf("%s%s\n\n", i ? "\n" : "", name);
        exf_jw_open(&w, name, '[');
        for (size_t k = 0; (line = exf_specification_line(name, k)); k++) {
            if (r->json)
                exf_jw_text(&w, NULL, line);
            else
                printf("%s\n", line);
        }
        exf_jw_close(&w);
    }
    exf_jw_close(&w);
    if (r->json) rc = exf_print_json(&w, err);
out:
    exf_text_free(&names);
    exf_jw_free(&w);
    return rc;
}

/* ---- schema --------------------------------------------------------------------------------- */

static exf_code print_schema(exf_recipe *r, exf_err *err)
{
    static const struct {
        const char *name;
        exf_code (*make)(exf_text *out, exf_err *err);
    } kinds[] = {{"recipe", exf_recipe_schema}, {"manifest", exf_manifest_schema}};
    exf_text text = {0};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].name, r->inputs[0]) != 0) continue;
        exf_code rc = kinds[i].make(&text, err);
        if (rc == EXF_OK) fwrite(text.s, 1, text.len, stdout);
        exf_text_free(&text);
        return rc;
    }
    return exf_fail(err, EXF_USAGE, "\"%s\" has no JSON Schema; recipe and manifest have one", r->inputs[0]);
}

/* ---- tokenize ------------------------------------------------------------------------------- */

/* Writes the ids as a line of their own, or into an open array. */
static void write_ids(const exf_ids *ids, exf_jw *w)
{
    if (w) exf_jw_open(w, NULL, '[');
    for (size_t i = 0; i < ids->n; i++) {
        if (w)
            exf_jw_int(w, NULL, ids->id[i]);
        else
            printf("%s%d", i ? ", " : "[", (int)ids->id[i]);
    }
    if (w)
        exf_jw_close(w);
    else
        printf(ids->n ? "]\n" : "[]\n");
}

static exf_code tokenize_line(const exf_tokenizer *t, const char *line, size_t len, size_t number, exf_ids *ids, exf_jw *w,
                              exf_err *err)
{
    exf_json *doc = NULL;
    char where[48];
    size_t n;
    exf_code rc;
    snprintf(where, sizeof where, "standard input: line %zu", number);
    EXF_TRY(exf_json_parse_line(&doc, line, len, "standard input", (int64_t)number, err));
    const char *text = exf_json_string(doc, &n);
    if (!text) {
        rc = exf_fail(err, EXF_FORMAT, "%s: is %s, expected a string", where, exf_json_type_name(doc));
        goto out;
    }
    ids->n = 0;
    rc = exf_tokenizer_encode(t, text, n, ids, err);
    if (rc == EXF_OK)
        write_ids(ids, w);
    else
        exf_err_prefix(err, "%s: ", where);
out:
    exf_json_free(doc);
    return rc;
}

/* Reads the next line of standard input into *line, of which *room bytes are allocated; *len: without its newline, -1 after the
 * last line. */
static exf_code read_line(char **line, size_t *room, ptrdiff_t *len, size_t number, exf_err *err)
{
    size_t n = 0;
    int c = EOF;
    *len = -1;
    for (errno = 0; (c = getc_unlocked(stdin)) != EOF && c != '\n'; (*line)[n++] = (char)c) {
        if (n == EXF_MOST_DOCUMENT_BYTES)
            return exf_fail(err, EXF_FORMAT, "standard input: line %zu: longer than %d bytes", number, EXF_MOST_DOCUMENT_BYTES);
        exf_code rc = n < *room ? EXF_OK : exf_mem_grow(line, room, n + 1, 1, "line of standard input", err);
        if (rc != EXF_OK) {
            exf_err_prefix(err, "standard input: line %zu: ", number);
            return rc;
        }
    }
    int why = errno;
    exf_code rc = exf_stop_check(err); /* which is why a read may have ended */
    if (rc == EXF_OK && ferror(stdin)) rc = exf_fail_errno(err, why, "standard input: cannot read");
    if (c != EOF || n) *len = (ptrdiff_t)n;
    return rc;
}

/* One JSON string per line on stdin, one JSON array of ids per line out, so that any other tokenizer can be compared. */
static exf_code print_ids(exf_recipe *r, exf_err *err)
{
    exf_tokenizer *t = NULL;
    exf_ids ids = {0};
    exf_jw w = {0};
    char *path = NULL, *line = NULL;
    size_t room = 0, number = 0;
    ptrdiff_t len = 0;
    exf_code rc;
    EXF_TRY(exf_tokenizer_path(&path, r->inputs[0], err));
    EXF_TRY(exf_tokenizer_load(&t, path, EXF_BOS_AUTO, err));
    exf_jw_open(&w, NULL, '{');
    exf_jw_open(&w, "ids", '[');
    while (!ferror(stdout)) {
        EXF_TRY(read_line(&line, &room, &len, ++number, err));
        if (len < 0) break;
        EXF_TRY(tokenize_line(t, line, (size_t)len, number, &ids, r->json ? &w : NULL, err));
    }
    exf_jw_close(&w);
    exf_jw_close(&w);
    if (rc == EXF_OK && r->json) rc = exf_print_json(&w, err);
out:
    exf_jw_free(&w);
    exf_mem_free(line);
    exf_ids_free(&ids);
    exf_tokenizer_free(t);
    exf_mem_free(path);
    return rc;
}

/* ---- the program ---------------------------------------------------------------------------- */

#define AT(field) offsetof(exf_recipe, field)

static const exf_opt rows[] = {
    {NULL, "json", 0, EXF_OPT_FLAG, AT(json), "false", NULL, "Results", "one JSON object on standard output"},
    {NULL, "output", 'o', EXF_OPT_TEXT, AT(output_file), NULL, "FILE", "Results",
     "heatmap: the picture, .png, .svg or .pdf; report: the page, .html"},
    {NULL, "force", 'f', EXF_OPT_FLAG, AT(force), "false", NULL, "Results", "replace outputs that exist"},
    {NULL, "what", 0, EXF_OPT_TEXT_LIST, AT(what), "all", "NAMES", "heatmap",
     "of norms, similarity, aligned, scalar, loss; several or all: FILE-<name>.png"},
    {NULL, "range", 0, EXF_OPT_TEXT_LIST, AT(range), "[]", "MIN,MAX", "heatmap",
     "ends of the colours, or auto; auto: around the values, without it 0 and 1, or the values where all lie together"},
    {NULL, "layers", 0, EXF_OPT_TEXT, AT(layers), "all", "LIST", "heatmap", "layers such as 0,3,8-11"},
    {NULL, "data", 0, EXF_OPT_FLAG, AT(data), "false", NULL, "heatmap", "write the numbers beside each picture; as .csv and .npy"},
    {NULL, "fail-above", 0, EXF_OPT_TEXT_LIST, AT(fail_above), "[]", "NAME=X", "diff",
     "end with status 10 if a change is larger; flips=0.05 (share of traffic), scalar, loss (largest change), "
     "norm (relative), coverage (share of pairs), cost (loss of the other's targets beyond one's own)"},
};

static const exf_command commands[] = {
    {"summary", "FILE.h5 [STATISTICS.h5]",
     "what it is and holds, layer by layer; coverage, sample sizes, losses, norms, cold experts,\n"
     "and similarity where statistics stand beside tables; of validation.json or frontier.json what\n"
     "exfold-validate printed; a FILE without a command is summed up",
     1, 2, "json", exf_inspect_summary},
    {"heatmap", "FILE.h5 [STATISTICS.h5] -o OUT.pdf",
     "every layer's norms, similarity, scalars and losses; in one picture each,\nas .png, .svg or .pdf", 1, 2,
     "json output force what range layers data", exf_inspect_heatmap},
    {"report", "TABLES.h5 [STATISTICS.h5] -o OUT.html",
     "one page with everything, for any browser; takes validation.json,\nvalidation.md, frontier.json from beside the tables",
     1, 2, "json output force", exf_inspect_report},
    {"diff", "A.h5 B.h5", "what changed from one table to another; facts, coverage, scalars, targets, pools", 2, 2,
     "json fail-above", exf_inspect_diff},
    {"verify", "PATH ...",
     "checks each file, and that files belong together; statistics beside their\n"
     "tables are solved again, which finds a single changed number; a directory\n"
     "stands for all that a run wrote into it",
     1, 16, "json", exf_inspect_verify},
    {"digest", "FILE.h5", "its digest, alone: SHA-256 of what it holds, not of the file's bytes", 1, 1, "json", print_digest},
    {"tokenize", "MODEL_DIR", "token ids of the JSON strings on standard input, a line each", 1, 1, "json", print_ids},
    {"spec", "[KIND]", "the specification of a file format, or of all; without KIND the list of them",
     0, 1, "json", print_specifications},
    {"schema", "recipe|manifest", "its JSON Schema; which an editor checks and completes such a file with", 1, 1, "", print_schema},
};

const exf_program exf_program_inspect = {
    .name = "exfold-inspect",
    .arguments = "COMMAND ARGUMENT ... | FILE.h5",
    .group = "look",
    .brief = "shows, draws, compares and verifies files",
    .about = "Shows what files are and hold, draws, compares and verifies them.",
    .examples = "exfold-inspect out/tables.h5    # what it is and holds\n"
                "exfold-inspect verify out\n"
                "exfold-inspect diff last/tables.h5 out/tables.h5 --fail-above flips=0.05\n"
                "exfold-inspect report out/tables.h5 -o report.html",
    .rows = rows, .n_rows = sizeof rows / sizeof *rows,
    .min_inputs = 1, .max_inputs = 17,
    .commands = commands, .n_commands = sizeof commands / sizeof *commands,
};
