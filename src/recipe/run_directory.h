/* run_directory.h - the directory in which a program writes: its lock, the line about each file that was written, and
 * the files that are made from the tables there.
 *
 * The directory of a run is made on demand and removed after a failure that left it empty; an output file that the user named
 * lies in a directory that exists.  One program at a time writes in a directory: its lock is taken before the work and held
 * until the outputs are complete. */
#ifndef EXF_RECIPE_RUN_DIRECTORY_H
#define EXF_RECIPE_RUN_DIRECTORY_H
#include "base/opt.h"

typedef struct exf_run_directory {
    char *path;
    size_t n_made; /* the last directories of the path, which this run made */
    int lock;      /* open while this run may write; 0: not locked */
    struct exf_run_directory *next; /* of those that the process has locked */
} exf_run_directory; /* must not move until it is closed */

#define EXF_RUN_RESUME_PREFIX ".exfold-resume-" /* before the stage, the name of a resume point in the directory */

/* Name the directory without touching the disk; make and lock what was named; do both.  EXF_IO if another program
 * has locked the directory; a process may lock one more than once. */
exf_code exf_run_directory_name(exf_run_directory *d, const char *path, exf_err *err) EXF_CHECKED;
exf_code exf_run_directory_make(exf_run_directory *d, exf_err *err) EXF_CHECKED;
exf_code exf_run_directory_open(exf_run_directory *d, const char *path, exf_err *err) EXF_CHECKED;
/* Locks the directory of an output file that the user named.  Nothing is locked where the directory does not exist or cannot
 * be read, which the writer reports, or where a device, a pipe or a directory has the file's name. */
exf_code exf_run_directory_of_file(exf_run_directory *d, const char *file, exf_err *err) EXF_CHECKED;
/* EXF_IO if another program has locked the directory; for readers of what a run has ended. */
exf_code exf_run_directory_idle(const char *path, exf_err *err) EXF_CHECKED;
/* Refuses, before any work, two of the n outputs that are one file (EXF_USAGE), and one in a directory that does not exist and
 * is not d, which the run makes (EXF_IO).  path: NULL stands for none. */
exf_code exf_run_outputs_check(const exf_run_directory *d, const char *const *path, size_t n, exf_err *err) EXF_CHECKED;
/* Releases the lock.  After a failure: removes the directories that were made and are still empty. */
void exf_run_directory_close(exf_run_directory *d, int failed);

/* ---- what was written ------------------------------------------------------------------------- */

/* Prints "wrote PATH  1.2 MB" of a file, and with --verbose "digest ..." of an artifact, as exfold-inspect digest prints it,
 * "sha256 ..." of any other file, as sha256sum prints it; of a directory a line per file. */
exf_code exf_announce(const char *path, exf_err *err) EXF_CHECKED;
/* Prints the same of a file whose hex is known: its "digest" or "sha256", as word says; hex NULL: only how many bytes it has. */
exf_code exf_announce_known(const char *path, const char *word, const char *hex, exf_err *err) EXF_CHECKED;
/* Prints "wrote PATH  1.2 MB" of a file without a digest, which would be wider than the screen; where stdout is a result
 * (on_stdout 0) it reports "wrote PATH" on stderr. */
exf_code exf_announce_short(const char *path, int on_stdout, exf_err *err) EXF_CHECKED;
/* Writes a file of these bytes and announces it. */
exf_code exf_write_announced(const char *target, int force, const char *bytes, size_t n, exf_err *err) EXF_CHECKED;
/* Prints text that comes from a file, padded with blanks to at least `width` bytes; "?" replaces what exf_printable_bytes()
 * refuses, so that a terminal obeys nothing in it. */
void exf_print_text(const char *text, int width);

/* ---- what is made from tables (run_directory_derived.c) ------------------------------------------- */

/* A file that ExFold makes from the tables of its directory. */
typedef struct {
    const char *name;   /* of the file or folder */
    const char *marked; /* what holds the digest of the tables (artifact/provenance.h): name itself, or one in the folder */
    int kept;           /* 1: people may have changed it or added to it, so it is never removed */
    const char *target; /* the export target that writes it; NULL: none does */
} exf_derived_file;

/* Visits every derived file that the directory holds: results of exfold-validate, exports, reports,
 * the resolved recipe. */
typedef exf_code (*exf_derived_visit)(void *self, const exf_derived_file *f, exf_err *err);
exf_code exf_derived_each(const char *directory, exf_derived_visit visit, void *self, exf_err *err) EXF_CHECKED;

/* Removes, with a line on stdout, what was made from the tables of digest `old`, which those of digest
 * `now` have replaced; warns of what stays and was not made from `now`.  rewritten: export targets that
 * this run writes next, which are removed without a line; NULL: none.  old "": there were no tables. */
exf_code exf_derived_drop(const char *directory, const char *old, const char *now, const exf_text_list *rewritten,
                          exf_err *err) EXF_CHECKED;

/* EXF_MODEL if validation.json or validation.md beside the tables at path are of other tables: names
 * both digests and the command that validates again. */
exf_code exf_derived_check_validation(const char *tables, const char *digest, exf_err *err) EXF_CHECKED;
#endif
