/* program.c - see program.h. */
#include "tool/program.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/stop.h"
#include "base/version.h"
#include "export/writer.h"
#include "kernels/linear/gemm.h"
#include "tool/manual.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void on_signal(int number)
{
    exf_stop_request(number);
}

/* A file size limit is an error to report, not a reason to be killed. */
static void install_signals(void)
{
    struct sigaction stop = {.sa_handler = on_signal}, ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGXFSZ, &ignore, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
}

/* Starts over with the BLAS kernels that fit the processor, if the library chose
 * badly (kernels/linear/gemm.h) and the user did not choose.  Goes on as it is where the
 * system has no /proc. */
static void choose_blas_kernels(char **argv)
{
    const char *better = exf_gemm_better_kernels_cpu();
    if (!better || getenv("OPENBLAS_CORETYPE")) return;
    if (setenv("OPENBLAS_CORETYPE", better, 1) == 0) execv("/proc/self/exe", argv);
}

/* common rows, then the recipe's keys if wanted, then the program's own. */
static exf_code join_rows(const exf_program *p, exf_opt **out, size_t *n, exf_err *err)
{
    size_t n_common, n_keys;
    const exf_opt *common = exf_recipe_global_rows(&n_common), *keys = exf_recipe_key_rows(&n_keys);
    if (!p->wants_recipe) n_keys = 0;
    *n = n_common + n_keys + p->n_rows;
    exf_code rc = exf_mem_new(out, *n, sizeof **out, "option table", err);
    if (rc != EXF_OK) return rc;
    memcpy(*out, common, n_common * sizeof *common);
    memcpy(*out + n_common, keys, n_keys * sizeof *keys);
    if (p->n_rows) memcpy(*out + n_common + n_keys, p->rows, p->n_rows * sizeof *p->rows);
    return EXF_OK;
}

static void print_targets(void)
{
    printf("Export targets (output.targets):\n");
    for (size_t i = 0; exf_writer_at(i); i++) {
        const exf_writer *w = exf_writer_at(i);
        printf("  %-19s %s%s: %s\n", w->name, w->file, w->is_directory ? "/" : "", w->about);
    }
    printf("\n");
}

/* "  name ARGUMENTS" and its lines under it, for --help. */
static void print_commands(const exf_program *p)
{
    if (p->n_commands) printf("Commands:\n");
    for (size_t i = 0; i < p->n_commands; i++) {
        const char *about = p->commands[i].about;
        printf("  %s %s\n", p->commands[i].name, p->commands[i].arguments);
        while (*about) {
            int n = (int)strcspn(about, "\n");
            printf("      %.*s\n", n, about);
            about += n + (about[n] == '\n');
        }
    }
    if (p->n_commands) printf("\n");
}

static exf_code print_help(const exf_program *p, const exf_opt *rows, size_t n, exf_err *err)
{
    exf_text body = {0};
    exf_code rc = exf_opts_help(rows, n, &body, err);
    if (rc == EXF_OK) {
        printf("Usage: %s [OPTION ...] %s\n\n%s\n\n", p->name, p->arguments, p->about);
        print_commands(p);
        printf("%s\n", body.s);
        if (p->lists_targets) print_targets();
        printf("Exit status:\n");
#define X(name, value, text) printf("  %-3d %s\n", value, text);
        EXF_CODES(X)
#undef X
    }
    exf_text_free(&body);
    return rc;
}

static int is_recipe(const char *path)
{
    return exf_ends_with(path, ".yaml") || exf_ends_with(path, ".yml");
}

/* Sorts positional arguments into the recipe and the inputs. */
static exf_code sort_arguments(const exf_program *p, exf_recipe *r, const char **positional, size_t n, exf_err *err)
{
    r->inputs = positional;
    for (size_t i = 0; i < n; i++) {
        if (!p->wants_recipe || !is_recipe(positional[i])) {
            r->inputs[r->n_inputs++] = positional[i];
            continue;
        }
        if (r->recipe_file) return exf_fail(err, EXF_USAGE, "%s: a second recipe beside %s", positional[i], r->recipe_file);
        r->recipe_file = positional[i];
    }
    if (p->needs_recipe && !r->recipe_file)
        return exf_fail(err, EXF_USAGE, "no recipe (a .yaml file) was named; usage: %s %s", p->name, p->arguments);
    if (r->n_inputs > p->max_inputs)
        return exf_fail(err, EXF_USAGE, "%s: unexpected argument; usage: %s %s", r->inputs[p->max_inputs], p->name, p->arguments);
    if (r->n_inputs < p->min_inputs) return exf_fail(err, EXF_USAGE, "an argument is missing; usage: %s %s", p->name, p->arguments);
    return EXF_OK;
}

/* ---- commands ------------------------------------------------------------------ */

static exf_code unknown_command(const exf_program *p, const char *word, exf_err *err)
{
    exf_text names = {0};
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < p->n_commands; i++)
        rc = exf_text_addf(&names, err, "%s%s", i ? ", " : "", p->commands[i].name);
    if (rc == EXF_OK) rc = exf_fail(err, EXF_USAGE, "\"%s\" is no command; known: %s", word, names.s);
    exf_text_free(&names);
    return rc;
}

/* The command that the first argument names, or the first one if that looks like a file. */
static exf_code find_command(const exf_program *p, exf_recipe *r, const exf_command **out, exf_err *err)
{
    const char *word = r->inputs[0];
    *out = &p->commands[0];
    for (size_t i = 0; i < p->n_commands; i++) {
        if (strcmp(word, p->commands[i].name) != 0) continue;
        *out = &p->commands[i];
        r->inputs++;
        r->n_inputs--;
        return EXF_OK;
    }
    return strpbrk(word, "./") || exf_path_exists(word) ? EXF_OK : unknown_command(p, word, err);
}

static int takes_flag(const exf_command *c, const char *flag)
{
    size_t n = strlen(flag);
    for (const char *at = c->flags; (at = strstr(at, flag)); at += n)
        if ((at == c->flags || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return 1;
    return 0;
}

static exf_code run_command(const exf_program *p, exf_recipe *r, exf_err *err)
{
    const exf_command *c;
    exf_code rc = find_command(p, r, &c, err);
    if (rc != EXF_OK) return rc;
    if (r->n_inputs > c->max_inputs)
        return exf_fail(err, EXF_USAGE, "%s: unexpected argument; usage: %s %s %s", r->inputs[c->max_inputs], p->name, c->name,
                        c->arguments);
    if (r->n_inputs < c->min_inputs)
        return exf_fail(err, EXF_USAGE, "an argument is missing; usage: %s %s %s", p->name, c->name, c->arguments);
    for (size_t i = 0; i < p->n_rows; i++)
        if (exf_opts_given(r->opts, p->rows[i].flag, EXF_OPT_BY_ARGV) && !takes_flag(c, p->rows[i].flag))
            return exf_fail(err, EXF_USAGE, "--%s: is no option of %s %s", p->rows[i].flag, p->name, c->name);
    return c->run(r, err);
}

static exf_code parse_and_run(const exf_program *p, const exf_opt *rows, size_t n_rows, exf_recipe *r, int argc, char **argv,
                              exf_err *err)
{
    exf_code rc;
    const char **positional = NULL;
    size_t n = 0;
    EXF_TRY(exf_mem_new(&positional, (size_t)argc + 1, sizeof *positional, "arguments", err));
    EXF_TRY(exf_opts_new(&r->opts, rows, n_rows, r, err));
    EXF_TRY(exf_opts_argv(r->opts, argc, argv, positional, &n, err));
    if (r->help) {
        rc = print_help(p, rows, n_rows, err);
        goto out;
    }
    if (r->version) {
        printf("%s %s (commit %s, %s)\n", p->name, exf_release(), exf_commit(),
               exf_built_with_cuda() ? "CPU and CUDA" : "CPU only");
        goto out;
    }
    exf_log_setup(p->name, r->quiet ? EXF_LOG_QUIET : r->verbose ? EXF_LOG_DEBUG : EXF_LOG_INFO, (exf_progress_mode)r->progress);
    EXF_TRY(sort_arguments(p, r, positional, n, err));
    if (r->recipe_file) EXF_TRY(exf_recipe_read(r, r->recipe_file, err));
    EXF_TRY(p->n_commands ? run_command(p, r, err) : p->run(r, err));
out:
    exf_recipe_free(r);
    exf_mem_free(positional);
    return rc;
}

/* Results on a full disk or a closed pipe are lost only here. */
static exf_code close_stdout(exf_err *err)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return EXF_OK;
    return exf_fail_errno(err, errno ? errno : EIO, "standard output: cannot write the results");
}

/* --help=man, --help=bash, ...: 1 and the page, or its failure; 0 if that is not what argv says. */
static int print_manual(const exf_program *p, const exf_opt *rows, size_t n, int argc, char **argv, exf_code *rc, exf_err *err)
{
    exf_manual_page page = argc == 2 && exf_starts_with(argv[1], "--help=") ? exf_manual_find(strchr(argv[1], '=') + 1) : NULL;
    exf_text text = {0};
    if (!page) return 0;
    *rc = page(p, rows, n, &text, err);
    if (*rc == EXF_OK) fputs(text.s, stdout);
    exf_text_free(&text);
    return 1;
}

int exf_program_main(const exf_program *p, int argc, char **argv)
{
    exf_err err = {.code = EXF_OK, .msg = ""};
    exf_opt *rows = NULL;
    size_t n_rows = 0;
    exf_recipe recipe = {.recipe_file = NULL};
    choose_blas_kernels(argv);
    install_signals();
    exf_log_setup(p->name, EXF_LOG_INFO, EXF_PROGRESS_AUTO);
    exf_code rc = join_rows(p, &rows, &n_rows, &err);
    if (rc == EXF_OK && !print_manual(p, rows, n_rows, argc, argv, &rc, &err))
        rc = parse_and_run(p, rows, n_rows, &recipe, argc, argv, &err);
    if (rc == EXF_OK) rc = close_stdout(&err);
    if (rc != EXF_OK) {
        err.code = rc;
        exf_log_error(&err);
    }
    exf_mem_free(rows);
    return (int)rc;
}
