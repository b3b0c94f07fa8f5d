/* program_main.c - the main function of every program, from the first signal handler to the exit status: it joins the job that
 * mpirun or srun started, reads the command line and the recipe, prints help or runs, and tells an error; see program.h. */
#include "cli/program.h"

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "format/yaml.h"
#include "kernels/linear/linear.h"
#include "ranks/ranks.h"

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

/* ---- how it starts ------------------------------------------------------------------ */

static void on_signal(int number)
{
    exf_stop_request(number);
}

static void install_stop(int number)
{
    struct sigaction stop = {.sa_handler = on_signal};
    sigaction(number, &stop, NULL);
}

/* Returns JSON if the arguments ask for it, else AUTO: an argument that is refused is told in the same form. */
static exf_progress_mode progress_of(char **argv)
{
    for (char **a = argv + 1; *a; a++)
        if (strcmp(*a, "--progress=json") == 0 || (strcmp(*a, "--progress") == 0 && a[1] && strcmp(a[1], "json") == 0))
            return EXF_PROGRESS_JSON;
    return EXF_PROGRESS_AUTO;
}

/* ---- the ranks of a job ----------------------------------------------------------------- */

/* Leaves one GPU visible, before CUDA looks: that of the local rank among CUDA_VISIBLE_DEVICES or, where that is not
 * set, all.  CUDA takes 0.3 s more to start, and 0.15 s to end, for each further GPU that a process sees.  A list of one is
 * the batch system's choice. */
static exf_code choose_gpu(const exf_ranks *r, exf_err *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    exf_place p = exf_ranks_place(r);
    exf_text one = {0};
    exf_code rc;
    int n = 1;
    if (visible && !strchr(visible, ',')) return EXF_OK;
    for (const char *c = visible; c && *c; c++) n += *c == ',';
    if (visible && p.local_rank >= n)
        return exf_fail(err, EXF_USAGE, "%d ranks on %s for %d GPUs (CUDA_VISIBLE_DEVICES=%s); start one rank a GPU",
                        p.local_size, p.host, n, visible);
    for (int i = 0; visible && i < p.local_rank; i++) visible = strchr(visible, ',') + 1;
    if (visible)
        exf_text_append(&one, visible, strcspn(visible, ","));
    else
        exf_text_appendf(&one, "%d", p.local_rank);
    EXF_TRY(exf_text_end(&one, err));
    if (setenv("CUDA_VISIBLE_DEVICES", one.s, 1) != 0) rc = exf_fail_errno(err, errno, "cannot set CUDA_VISIBLE_DEVICES");
out:
    exf_text_free(&one);
    return rc;
}

/* Joins the job that mpirun or srun started; *out is NULL for a plain start.  EXF_USAGE for several ranks of a program that
 * runs as one process.  Ranks other than 0 are silent on standard output from here on.  Each rank takes its share of the
 * processors, and of several GPUs that of its number on the node. */
static exf_code join_job(exf_ranks **out, const exf_program *p, exf_err *err)
{
    int n = exf_ranks_started();
    exf_code rc;
    *out = NULL;
    if (n > 1 && !p->takes_ranks)
        return exf_fail(err, EXF_USAGE, "started as %d ranks, but %s runs as one process: each would do the whole work", n,
                        p->name);
    if (!p->takes_ranks) return EXF_OK;
    EXF_TRY(exf_ranks_open(out, err));
    if (!*out) return choose_gpu(NULL, err);
    install_stop(SIGUSR1); /* which mpirun passes on, where it ends the job for others */
    exf_ranks_on_death(*out, exf_log_error);
    if (!exf_ranks_first(*out) && !freopen("/dev/null", "w", stdout)) {
        rc = exf_fail_errno(err, errno, "/dev/null");
        goto out;
    }
    exf_place own = exf_ranks_place(*out);
    int sharing = 0; /* ranks that may run on the same processors; those that were bound to processors of their own keep them */
    for (int i = 0; i < own.size; i++) {
        exf_place other = exf_ranks_place_of(*out, i);
        sharing += other.node == own.node && other.processors == own.processors;
    }
    exf_share_processors(sharing);
    /* Open MPI binds to one core, where it starts one or two ranks. */
    int bound = exf_processors_of(0), share = exf_processors_of(getppid()) / own.local_size;
    if (exf_ranks_first(*out) && getenv("OMPI_COMM_WORLD_SIZE") && bound < share)
        exf_log_warn("mpirun bound rank %d on %s to %d of the %d processors that are its share; start with mpirun --bind-to none",
                     own.rank, own.host, bound, share);
    rc = choose_gpu(*out, err);
out:
    return rc;
}

/* ---- arguments ---------------------------------------------------------------------------- */

/* Where p has no inputs beside the recipe, an argument is the recipe whatever it is called; elsewhere a name that ends in .yaml or
 * .yml, or a file that holds a YAML map; no YAML file begins with the first byte of an HDF5 file. */
static int is_recipe(const exf_program *p, const exf_recipe *r, const char *path)
{
    struct stat st;
    exf_yaml *root = NULL;
    if (!p->keys) return 0;
    if (exf_ends_with(path, ".yaml") || exf_ends_with(path, ".yml")) return 1;
    if (r->texts.n) return 0; /* others are texts too */
    if (p->max_inputs == 0 && !r->recipe_file) return 1;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return 0;
    int is_map = exf_yaml_load(&root, path, NULL) == EXF_OK && root->kind == EXF_YAML_MAP;
    exf_yaml_free(root);
    return is_map;
}

/* Fills r->recipe_file and r->inputs from n arguments; r->inputs is the caller's array.  EXF_USAGE: too few, too many. */
static exf_code sort_arguments(const exf_program *p, exf_recipe *r, const char **positional, size_t n, exf_err *err)
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
    int has_texts = r->texts.n || (r->validate_manifest && strcmp(p->name, "exfold-validate") == 0);
    if (p->needs_recipe && !r->recipe_file && !has_texts && !r->init_path)
        return exf_fail(err, EXF_USAGE, "no recipe (a YAML file) was named; usage: %s %s", p->name, p->arguments);
    if (r->n_inputs > p->max_inputs && !r->texts.n)
        return exf_fail(err, EXF_USAGE, "%s: unexpected argument; usage: %s %s", r->inputs[p->max_inputs], p->name, p->arguments);
    if (r->n_inputs < p->min_inputs) return exf_fail(err, EXF_USAGE, "an argument is missing; usage: %s %s", p->name, p->arguments);
    return EXF_OK;
}

/* ---- commands ------------------------------------------------------------------ */

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
    exf_text names = {0};
    int found = 0;
    if (strpbrk(word, "./")) return EXF_OK;
    exf_code rc = exf_path_look(word, &found, err);
    if (rc != EXF_OK || found) return rc;
    for (size_t i = 0; i < p->n_commands; i++) exf_text_appendf(&names, "%s%s", i ? ", " : "", p->commands[i].name);
    rc = exf_text_end(&names, err);
    if (rc == EXF_OK) rc = exf_fail(err, EXF_USAGE, "\"%s\" is no command; known: %s", word, names.s);
    exf_text_free(&names);
    return rc;
}

static exf_code run_command(const exf_program *p, exf_recipe *r, exf_err *err)
{
    const exf_command *c;
    exf_text names = {0}; /* of the commands that take an option which this one does not */
    exf_code rc = find_command(p, r, &c, err);
    if (rc != EXF_OK) return rc;
    if (r->n_inputs > c->max_inputs)
        return exf_fail(err, EXF_USAGE, "%s: unexpected argument; usage: %s %s %s", r->inputs[c->max_inputs], p->name, c->name,
                        c->arguments);
    if (r->n_inputs < c->min_inputs)
        return exf_fail(err, EXF_USAGE, "an argument is missing; usage: %s %s %s", p->name, c->name, c->arguments);
    for (size_t i = 0; i < p->n_rows; i++) {
        const char *flag = p->rows[i].flag;
        if (!exf_opts_given(r->opts, flag, EXF_OPT_BY_ARGV) || exf_command_takes(c, flag)) continue;
        for (size_t k = 0; k < p->n_commands; k++)
            if (exf_command_takes(&p->commands[k], flag))
                exf_text_appendf(&names, "%s%s", names.len ? ", " : "", p->commands[k].name);
        rc = exf_text_end(&names, err);
        if (rc == EXF_OK) rc = exf_fail(err, EXF_USAGE, "--%s: is no option of %s %s, but of %s", flag, p->name, c->name, names.s);
        exf_text_free(&names);
        return rc;
    }
    return c->run(r, err);
}

/* ---- texts on stdout --------------------------------------------------------------- */

/* Prints a text whose making ended with rc, and frees it. */
static exf_code print_text(exf_text *text, exf_code rc)
{
    if (rc == EXF_OK && text->len) fputs(text->s, stdout);
    exf_text_free(text);
    return rc;
}

/* ---- the run --------------------------------------------------------------------------- */

static exf_code run_program(const exf_program *p, exf_recipe *r, const char **positional, size_t n, exf_err *err)
{
    exf_code rc;
    if (!exf_ranks_first(r->job)) {
        r->quiet = 1; /* rank 0 speaks for all */
        r->progress = EXF_PROGRESS_NONE;
    }
    exf_log_setup(p->name, r->quiet ? EXF_LOG_QUIET : r->verbose ? EXF_LOG_DEBUG : EXF_LOG_INFO, (exf_progress_mode)r->progress);
    if (r->quiet && r->verbose && exf_ranks_first(r->job)) {
        rc = exf_fail(err, EXF_USAGE, "--quiet and --verbose contradict each other; give one of them");
        goto out;
    }
    EXF_TRY(sort_arguments(p, r, positional, n, err));
    if (r->recipe_file) EXF_TRY(exf_recipe_read(r, r->recipe_file, err));
    EXF_TRY(p->n_commands ? run_command(p, r, err) : p->run(r, err));
out:
    return rc;
}

static int takes_row(const void *program, const exf_opt *row)
{
    return !row->key || exf_program_uses(program, row->key);
}

static exf_code parse_and_run(const exf_program *p, exf_recipe *r, int argc, char **argv, exf_err *err)
{
    exf_code rc;
    exf_text text = {0};
    exf_opt *rows = NULL;
    const char **positional = NULL;
    const exf_opt_scope scope = {p, takes_row, exf_programs_taking};
    const exf_command *command = NULL; /* the one before --help */
    size_t n = 0, n_rows;
    EXF_TRY(exf_mem_new(&positional, (size_t)argc + 1, sizeof *positional, "arguments", err));
    EXF_TRY(exf_program_rows(p, 1, &rows, &n_rows, NULL, err));
    EXF_TRY(exf_opts_new(&r->opts, rows, n_rows, r, err));
    exf_opts_limit(r->opts, &scope);
    EXF_TRY(exf_opts_argv(r->opts, argc, argv, positional, &n, err));
    for (size_t i = 0; n && i < p->n_commands; i++)
        if (strcmp(positional[0], p->commands[i].name) == 0) command = &p->commands[i];
    if (r->version)
        printf("%s %s (commit %s, %s, %s)\n", p->name, exf_release(), exf_commit(),
               exf_built_with_cuda() ? "CPU and CUDA" : "CPU only", exf_ranks_built() ? "MPI" : "no MPI");
    else if (r->help || r->help_keys || p->runs_others)
        rc = print_text(&text, r->help_keys ? exf_help_keys_text(p, &text, err) : exf_help_text(p, command, &text, err));
    else
        rc = run_program(p, r, positional, n, err);
out:
    exf_recipe_free(r);
    exf_mem_free(rows);
    exf_mem_free(positional);
    return rc;
}

/* ---- how it ends ------------------------------------------------------------------------ */

/* Flushes the results: of few, only now does a full disk refuse them. */
static exf_code close_stdout(exf_err *err)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    struct sigaction usual = {.sa_handler = SIG_DFL};
    sigset_t pipe_alone;
    int failed = fflush(stdout) != 0, why = errno;
    if (!failed && !ferror(stdout)) return EXF_OK;
    /* Of a pipe that nobody reads any more: ends by SIGPIPE, without a word, as a shell expects it of a program whose reader has
     * seen enough.  The signal is ignored until now, so that a run ends its files and cleans up first. */
    if (poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP))) {
        sigemptyset(&pipe_alone);
        sigaddset(&pipe_alone, SIGPIPE);
        sigaction(SIGPIPE, &usual, NULL);
        sigprocmask(SIG_UNBLOCK, &pipe_alone, NULL);
        raise(SIGPIPE);
    }
    /* Of an earlier write stdio keeps only that it failed: another byte is refused for the same reason.  Where it is taken, it
     * ends the last line, which was cut. */
    if (!failed) why = write(STDOUT_FILENO, "\n", 1) < 0 ? errno : EIO;
    return exf_fail_errno(err, why, "standard output: cannot write the results");
}

/* As the main function is not there yet, the first 1023 arguments are what the system says. */
void exf_program_end_early(const exf_program *p, const exf_err *err)
{
    static char text[1 << 16], *argv[1024];
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t len = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    size_t n = 0;
    if (fd >= 0) close(fd);
    for (ssize_t at = 0; at < len && n < 1023; at += (ssize_t)strlen(text + at) + 1) argv[n++] = text + at;
    exf_log_setup(p->name, EXF_LOG_INFO, n ? progress_of(argv) : EXF_PROGRESS_AUTO);
    exf_log_error_and_exit(err);
}

/* ---- main --------------------------------------------------------------------------- */

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
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    exf_err err = {.code = EXF_OK, .msg = ""};
    exf_recipe recipe = {.recipe_file = NULL};
    exf_ranks *ranks = NULL;
    exf_text text = {0};
    int speaks, names_other = argc > 1 && argv[1][0] != '-' && !(argc == 2 && strcmp(argv[1], "help") == 0);
    exf_code rc = exf_standard_descriptors(&err);
    if (rc != EXF_OK) return (int)rc; /* a message would have no place to go */
    exf_log_setup(p->name, EXF_LOG_INFO, progress_of(argv));
    EXF_TRY(check_stack(&err));
    if (p->runs_others && names_other) {
        rc = exf_program_become(argc, argv, &err);
        goto out;
    }
    /* Starts over with the BLAS kernels that fit the processor, if the library chose badly (kernels/linear/linear.h) and the user
     * did not choose.  Goes on as it is where the system has no /proc. */
    const char *better = exf_gemm_better_kernels_cpu();
    if (better && !getenv("OPENBLAS_CORETYPE") && setenv("OPENBLAS_CORETYPE", better, 1) == 0) execv("/proc/self/exe", argv);
    install_stop(SIGINT);
    install_stop(SIGTERM);
    install_stop(SIGHUP);
    sigaction(SIGXFSZ, &ignore, NULL); /* a file size limit is an error to report, not a reason to be killed */
    sigaction(SIGPIPE, &ignore, NULL);
    if (argc == 2 && strcmp(argv[1], "--help-json") == 0) {
        EXF_TRY(print_text(&text, exf_help_json(&text, &err)));
    } else if (argc > 2 && strcmp(argv[1], "--complete") == 0) {
        EXF_TRY(print_text(&text, exf_complete(p, (const char *const *)argv + 2, (size_t)argc - 2, &text, &err)));
    } else {
        EXF_TRY(join_job(&ranks, p, &err));
        recipe.job = ranks;
        EXF_TRY(parse_and_run(p, &recipe, argc, argv, &err));
    }
    rc = close_stdout(&err);
out:
    rc = exf_ranks_close(ranks, rc, &speaks, &err);
    if (rc == EXF_OK) return EXF_OK;
    err.code = rc;
    if (speaks) exf_log_error(&err); /* on one rank of a job */
    exf_ranks_abort(rc);
    return (int)rc;
}
