/* err.h - how every fallible function in ExFold reports failure.
 *
 * A fallible function returns an exf_code and takes `exf_err *err` last.  The
 * function that *discovers* the failure fills err once, through exf_fail(),
 * with one sentence that names the file, the object and the two values that
 * disagree.  Callers pass the code up through EXF_TRY and one `out:` label;
 * where the discoverer cannot know the file, the caller that can prepends it
 * with exf_err_prefix().  Nothing below src/recipe prints, exits or aborts.
 *
 * Ownership: exf_err is plain memory of the caller; nothing here allocates. */
#ifndef EXF_BASE_ERR_H
#define EXF_BASE_ERR_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One list: the enum, the names, and the exit status of every program.
 * Values are a promise to scripts (docs/programs.md): append only. */
#define EXF_CODES(X)                                                  \
    X(OK, 0, "success")                                               \
    X(INTERNAL, 1, "internal error")                                  \
    X(USAGE, 2, "bad command line, recipe or manifest")               \
    X(MODEL, 3, "unsupported or inconsistent model or data")          \
    X(IO, 4, "the operating system refused")                          \
    X(FORMAT, 5, "corrupt or malformed file")                         \
    X(VERSION, 6, "file written by an incompatible version")          \
    X(NOSPACE, 7, "out of memory or disk")                            \
    X(NUMERIC, 8, "non-finite numbers")                               \
    X(DEVICE, 9, "the accelerator failed or is missing")              \
    X(THRESHOLD, 10, "a coverage or validation threshold was not met")\
    X(STOPPED, 75, "stopped, can be resumed")                         \
    X(SIGINT, 130, "interrupted by SIGINT")                           \
    X(SIGTERM, 143, "terminated by SIGTERM or SIGHUP")

/* What a shell says of a program that a signal ended: 128 and the signal's number.  They are no codes. */
#define EXF_SIGNAL_STATUSES(X)                                                           \
    X(137, "killed by SIGKILL, as by a system or a job that has no memory left")         \
    X(141, "ended by SIGPIPE: nobody reads its output any more; its files are complete")

typedef enum {
#define X(name, value, text) EXF_##name = value,
    EXF_CODES(X)
#undef X
} exf_code;

typedef struct {
    exf_code code;
    char msg[1024]; /* one sentence, UTF-8, no newline; cut, never overrun */
} exf_err;

#if defined(__GNUC__)
#define EXF_CHECKED __attribute__((warn_unused_result))
#define EXF_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define EXF_CHECKED
#define EXF_PRINTF(f, a)
#endif

/* "MODEL" for EXF_MODEL; "?" for a value outside the list. */
const char *exf_code_name(exf_code code);
/* The list's text for a code, as manual pages have it. */
const char *exf_code_text(exf_code code);

/* Fills err (which may be NULL) and returns code, so that a discoverer can
 * write `return exf_fail(err, EXF_FORMAT, "%s: ...", path, ...)`. */
exf_code exf_fail(exf_err *err, exf_code code, const char *fmt, ...) EXF_PRINTF(3, 4);
/* The same for a failed system call: appends strerror(errnum) and picks the
 * code: EXF_NOSPACE for ENOSPC, EDQUOT, EFBIG and ENOMEM, else EXF_IO. */
exf_code exf_fail_errno(exf_err *err, int errnum, const char *fmt, ...) EXF_PRINTF(3, 4);
/* Puts the formatted text in front of a message that is already there, unless that says that the run was stopped. */
void exf_err_prefix(exf_err *err, const char *fmt, ...) EXF_PRINTF(2, 3);

/* Single-exit propagation: the function has `exf_code rc` and a label `out`. */
#define EXF_TRY(expr)                          \
    do {                                       \
        if ((rc = (expr)) != EXF_OK) goto out; \
    } while (0)

/* Which characters of a foreign text a terminal may have.  Refused is what terminals and readers of logs obey: control characters,
 * marks that turn the writing's direction, separators of lines, and bytes that are no UTF-8. */

/* Sets *point to the character at s, of which `left` bytes may be read, up to the first that does not go on with it.  Returns its
 * bytes, 0 if it is no UTF-8: a surrogate, an overlong form, or beyond U+10FFFF. */
size_t exf_utf8_decode(const char *s, size_t left, uint32_t *point);
/* Bytes of the character at s (not its end), or 0 if it is refused. */
size_t exf_printable_bytes(const char *s);
/* Puts "?" in place of each byte that is refused. */
void exf_make_printable(char *s);

/* A flag that signal handlers set and long loops check.  src/cli installs the handlers; the forward pass checks between units of
 * work, so that an interrupted run cleans up like any other failed one. */

/* Requests a stop; async-signal-safe. */
void exf_stop_request(int signal_number);
/* EXF_OK, or EXF_SIGINT / EXF_SIGTERM once a stop was requested.  While stops are deferred, only the
 * second request counts. */
exf_code exf_stop_check(exf_err *err) EXF_CHECKED;
/* Turns the deferring of stops on or off; while it is on, the caller asks exf_stop_requested() where its work can be saved. */
void exf_stop_defer(int on);
/* Returns the number of the last signal that requested a stop; 0: none did. */
int exf_stop_requested(void);

#ifdef __cplusplus
}
#endif
#endif
