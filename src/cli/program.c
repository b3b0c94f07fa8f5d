/* program.c - see program.h. */
#include "cli/help.h"
#include "cli/manual.h"
#include "cli/program.h"
#include "cli/programs.h"
#include "cli/run_ranks.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/standard_descriptors.h"
#include "base/stop.h"
#include "base/version.h"
#include "format/yaml.h"
#include "kernels/linear/linear.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static void on_signal(int number)
{
    exf_stop_request(number);
}

static void install_stop(int number)
{
    struct sigaction stop = {.sa_handler = on_signal};
    sigaction(number, &stop, NULL);
}

/* A file size limit is an error to report, not a reason to be killed. */
static void install_signals(void)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    install_stop(SIGINT);
    install_stop(SIGTERM);
    install_stop(SIGHUP);
    sigaction(SIGXFSZ, &ignore, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
}

/* Starts over with the BLAS kernels that fit the processor, if the library chose
 * badly (kernels/linear/linear.h) and the user did not choose.  Goes on as it is where the
 * system has no /proc. */
static void choose_blas_kernels(char **argv)
{
    const char *better = exf_gemm_better_kernels_cpu();
    if (!better || getenv("OPENBLAS_CORETYPE")) return;
    if (setenv("OPENBLAS_CORETYPE", better, 1) == 0) execv("/proc/self/exe", argv);
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
    int found = 0;
    if (strpbrk(word, "./")) return EXF_OK;
    exf_code rc = exf_path_look(word, &found, err);
    return rc != EXF_OK || found ? rc : unknown_command(p, word, err);
}

/* `--what: is no option of exfold-inspect digest, but of heatmap`. */
static exf_code refuse_option(const exf_program *p, const exf_command *c, const char *flag, exf_err *err)
{
    exf_text names = {0};
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < p->n_commands; i++)
        if (exf_command_takes(&p->commands[i], flag))
            rc = exf_text_addf(&names, err, "%s%s", names.len ? ", " : "", p->commands[i].name);
    if (rc == EXF_OK) rc = exf_fail(err, EXF_USAGE, "--%s: is no option of %s %s, but of %s", flag, p->name, c->name, names.s);
    exf_text_free(&names);
    return rc;
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
        if (exf_opts_given(r->opts, p->rows[i].flag, EXF_OPT_BY_ARGV) && !exf_command_takes(c, p->rows[i].flag))
            return refuse_option(p, c, p->rows[i].flag, err);
    return c->run(r, err);
}

/* ---- texts on stdout --------------------------------------------------------------- */

/* The command that stands before --help, if one does. */
static const exf_command *command_of(const exf_program *p, const char *const *positional, size_t n)
{
    for (size_t i = 0; n && i < p->n_commands; i++)
        if (strcmp(positional[0], p->commands[i].name) == 0) return &p->commands[i];
    return NULL;
}

static exf_code print_help(const exf_program *p, const exf_command *c, int keys, exf_err *err)
{
    exf_text text = {0};
    exf_code rc = keys ? exf_help_keys_text(p, &text, err) : exf_help_text(p, c, &text, err);
    if (rc == EXF_OK) fputs(text.s, stdout);
    exf_text_free(&text);
    return rc;
}

static void print_version(const exf_program *p)
{
    printf("%s %s (commit %s, %s, %s)\n", p->name, exf_release(), exf_commit(),
           exf_built_with_cuda() ? "CPU and CUDA" : "CPU only", exf_ranks_built() ? "MPI" : "no MPI");
}

/* --help=man, --help=bash, ...: 1 and the page, or its failure; 0 if that is not what argv says. */
static int print_manual(const exf_program *p, int argc, char **argv, exf_code *rc, exf_err *err)
{
    exf_manual_page page = argc == 2 && exf_starts_with(argv[1], "--help=") ? exf_manual_find(strchr(argv[1], '=') + 1) : NULL;
    exf_text text = {0};
    exf_opt *rows = NULL;
    size_t n;
    if (!page) return 0;
    *rc = exf_program_rows(p, 0, &rows, &n, NULL, err);
    if (*rc == EXF_OK) *rc = page(p, rows, n, &text, err);
    if (*rc == EXF_OK) fputs(text.s, stdout);
    exf_text_free(&text);
    exf_mem_free(rows);
    return 1;
}

/* ---- main --------------------------------------------------------------------------- */

static exf_code run(const exf_program *p, exf_recipe *r, const char **positional, size_t n, exf_err *err)
{
    exf_code rc;
    if (!exf_ranks_first(r->job)) {
        r->quiet = 1; /* rank 0 speaks for all */
        r->progress = EXF_PROGRESS_NONE;
    }
    exf_log_setup(p->name, r->quiet ? EXF_LOG_QUIET : r->verbose ? EXF_LOG_DEBUG : EXF_LOG_INFO, (exf_progress_mode)r->progress);
    EXF_TRY(exf_arguments_sort(p, r, positional, n, err));
    if (r->recipe_file) EXF_TRY(exf_recipe_read(r, r->recipe_file, err));
    EXF_TRY(p->n_commands ? run_command(p, r, err) : p->run(r, err));
out:
    return rc;
}

static exf_code parse_and_run(const exf_program *p, exf_recipe *r, int argc, char **argv, exf_err *err)
{
    exf_code rc;
    exf_opt *rows = NULL;
    const char **positional = NULL;
    const exf_opt_scope scope = exf_program_scope(p);
    size_t n = 0, n_rows;
    EXF_TRY(exf_mem_new(&positional, (size_t)argc + 1, sizeof *positional, "arguments", err));
    EXF_TRY(exf_program_rows(p, 1, &rows, &n_rows, NULL, err));
    EXF_TRY(exf_opts_new(&r->opts, rows, n_rows, r, err));
    exf_opts_limit(r->opts, &scope);
    EXF_TRY(exf_opts_argv(r->opts, argc, argv, positional, &n, err));
    if (r->version)
        print_version(p);
    else if (r->help || r->help_keys || p->runs_others)
        rc = print_help(p, command_of(p, positional, n), r->help_keys, err);
    else
        rc = run(p, r, positional, n, err);
out:
    exf_recipe_free(r);
    exf_mem_free(rows);
    exf_mem_free(positional);
    return rc;
}

/* 1 if stdout is a pipe that nobody reads any more. */
static int reader_has_gone(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP));
}

/* Ends the program by SIGPIPE, without a word, as a shell expects it of one whose reader has seen enough.
 * The signal is ignored until now, so that a run ends its files and cleans up first. */
static void end_by_pipe(void)
{
    struct sigaction usual = {.sa_handler = SIG_DFL};
    sigset_t pipe_alone;
    sigemptyset(&pipe_alone);
    sigaddset(&pipe_alone, SIGPIPE);
    sigaction(SIGPIPE, &usual, NULL);
    sigprocmask(SIG_UNBLOCK, &pipe_alone, NULL);
    raise(SIGPIPE);
}

/* Results on a full disk are lost only here. */
static exf_code close_stdout(exf_err *err)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return EXF_OK;
    int why = errno ? errno : EIO;
    if (reader_has_gone()) end_by_pipe();
    return exf_fail_errno(err, why, "standard output: cannot write the results");
}

static exf_code run_or_become(const exf_program *p, int argc, char **argv, exf_ranks **ranks, exf_err *err)
{
    exf_recipe recipe = {.recipe_file = NULL};
    exf_code rc;
    if (p->runs_others && exf_names_other(argc, argv)) return exf_run_other(argc, argv, err);
    choose_blas_kernels(argv);
    install_signals();
    rc = exf_run_ranks_open(ranks, p, err);
    if (rc != EXF_OK) return rc;
    if (*ranks) install_stop(SIGUSR1); /* which mpirun passes on, where it ends the job for others */
    recipe.job = *ranks;
    if (!print_manual(p, argc, argv, &rc, err)) rc = parse_and_run(p, &recipe, argc, argv, err);
    return rc == EXF_OK ? close_stdout(err) : rc;
}

/* Returns JSON if the arguments ask for it, else AUTO: an argument that is refused is told in the same form. */
static exf_progress_mode progress_of(char **argv)
{
    for (char **a = argv + 1; *a; a++)
        if (strcmp(*a, "--progress=json") == 0 || (strcmp(*a, "--progress") == 0 && a[1] && strcmp(a[1], "json") == 0))
            return EXF_PROGRESS_JSON;
    return EXF_PROGRESS_AUTO;
}

/* The same of a program to which nobody has handed its arguments yet; the first 1023 of them. */
static exf_progress_mode progress_before_main(void)
{
    static char text[1 << 16], *argv[1024];
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t len = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    size_t n = 0;
    if (fd >= 0) close(fd);
    for (ssize_t at = 0; at < len && n < 1023; at += (ssize_t)strlen(text + at) + 1) argv[n++] = text + at;
    return n ? progress_of(argv) : EXF_PROGRESS_AUTO;
}

void exf_program_end_early(const exf_program *p, const exf_err *err)
{
    exf_log_setup(p->name, EXF_LOG_INFO, progress_before_main());
    exf_log_error(err);
    _exit((int)err->code);
}

/* Refuses to begin where the first thread, and with it every other, has too little of a stack: nested JSON takes
 * 192 KiB in libjansson, libhdf5 and validation half of that. */
static exf_code check_stack(exf_err *err)
{
    enum { LEAST_KIB = 512 };
    struct rlimit stack;
    if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur == RLIM_INFINITY || stack.rlim_cur >= (rlim_t)LEAST_KIB << 10)
        return EXF_OK;
    return exf_fail(err, EXF_NOSPACE, "the stack is limited to %llu KiB, expected at least %d KiB; set a larger limit (ulimit -s)",
                    (unsigned long long)stack.rlim_cur >> 10, LEAST_KIB);
}

int exf_program_main(const exf_program *p, int argc, char **argv)
{
    exf_err err = {.code = EXF_OK, .msg = ""};
    exf_ranks *ranks = NULL;
    exf_code rc = exf_standard_descriptors(&err);
    if (rc != EXF_OK) return (int)rc; /* a message would have no place to go */
    exf_log_setup(p->name, EXF_LOG_INFO, progress_of(argv));
    rc = check_stack(&err);
    if (rc == EXF_OK) rc = run_or_become(p, argc, argv, &ranks, &err);
    return exf_run_ranks_end(ranks, rc, &err);
}

/* ---- arguments --------------------------------------------------------------------------------- */

/* An HDF5 file begins with a byte that no YAML file has. */
static int holds_map(const char *path)
{
    struct stat st;
    exf_yaml *root = NULL;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return 0;
    int is_map = exf_yaml_load(&root, path, NULL) == EXF_OK && root->kind == EXF_YAML_MAP;
    exf_yaml_free(root);
    return is_map;
}

static int is_recipe(const exf_program *p, const exf_recipe *r, const char *path)
{
    if (!p->keys) return 0;
    if (r->texts.n) return exf_ends_with(path, ".yaml") || exf_ends_with(path, ".yml"); /* others are texts too */
    if (p->max_inputs == 0 && !r->recipe_file) return 1;
    return exf_ends_with(path, ".yaml") || exf_ends_with(path, ".yml") || holds_map(path);
}

exf_code exf_arguments_sort(const exf_program *p, exf_recipe *r, const char **positional, size_t n, exf_err *err)
{
    r->inputs = positional;
    for (size_t i = 0; i < n; i++) {
        if (!is_recipe(p, r, positional[i])) {
            r->inputs[r->n_inputs++] = positional[i];
            continue;
        }
        if (r->recipe_file) return exf_fail(err, EXF_USAGE, "%s: a second recipe beside %s", positional[i], r->recipe_file);
        r->recipe_file = positional[i];
    }
    if (p->needs_recipe && !r->recipe_file && !r->texts.n && !r->init_path)
        return exf_fail(err, EXF_USAGE, "no recipe (a YAML file) was named; usage: %s %s", p->name, p->arguments);
    if (r->n_inputs > p->max_inputs && !r->texts.n)
        return exf_fail(err, EXF_USAGE, "%s: unexpected argument; usage: %s %s", r->inputs[p->max_inputs], p->name, p->arguments);
    if (r->n_inputs < p->min_inputs) return exf_fail(err, EXF_USAGE, "an argument is missing; usage: %s %s", p->name, p->arguments);
    return EXF_OK;
}

/* ---- run other --------------------------------------------------------------------------------- */

enum { MAX_PATH = 4096 };

int exf_names_other(int argc, char **argv)
{
    return argc > 1 && argv[1][0] != '-' && !(argc == 2 && strcmp(argv[1], "help") == 0);
}

/* The path of a program beside this one's file; empty where the system does not say where that is. */
static exf_code beside_this(exf_text *out, const char *name, exf_err *err)
{
    char self[MAX_PATH];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    char *slash = strrchr(self, '/');
    return slash ? exf_text_addf(out, err, "%.*s/%s", (int)(slash - self), self, name) : exf_text_addf(out, err, "%s", "");
}

static exf_code become(const exf_program *p, char **argv, exf_err *err)
{
    exf_text path = {0};
    exf_code rc;
    EXF_TRY(beside_this(&path, p->name, err));
    errno = ENOENT;
    if (path.len) execv(path.s, argv);
    if (errno == ENOENT) execvp(p->name, argv);
    rc = exf_fail_errno(err, errno, "%s: cannot run it: it is neither beside exfold nor on PATH", p->name);
out:
    exf_text_free(&path);
    return rc;
}

exf_code exf_run_other(int argc, char **argv, exf_err *err)
{
    static char help[] = "--help";
    int wants_help = strcmp(argv[1], "help") == 0 && argc > 2;
    const char *word = argv[wants_help ? 2 : 1];
    char **arguments = NULL;
    const exf_program *p;
    exf_code rc;
    EXF_TRY(exf_program_require(word, &p, err));
    if (wants_help && argc > 3) {
        rc = exf_fail(err, EXF_USAGE, "%s: unexpected argument; usage: exfold help PROGRAM", argv[3]);
        goto out;
    }
    EXF_TRY(exf_mem_new(&arguments, (size_t)argc + 2, sizeof *arguments, "arguments", err));
    arguments[0] = (char *)(uintptr_t)p->name;
    for (int i = 2; i < argc; i++) arguments[i - 1] = argv[i];
    if (wants_help) arguments[1] = help;
    rc = become(p, arguments, err);
out:
    exf_mem_free(arguments);
    return rc;
}
