/* run_other.c - see run_other.h. */
#include "tool/run_other.h"

#include "base/mem.h"
#include "tool/programs.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

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
