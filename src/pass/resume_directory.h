/* resume_directory.h - the directory of one resume point: who made which file in it, and its lock. */
#ifndef EXF_PASS_RESUME_DIRECTORY_H
#define EXF_PASS_RESUME_DIRECTORY_H
#include "base/file.h"

#include <pthread.h>

typedef struct {
    char *path;              /* for messages, and for ranks on other machines */
    char *outputs;           /* path of the directory of "output" names; NULL: there are none */
    int fd;                  /* of the directory; -1: there is no point */
    int journal;             /* its descriptor, locked; -1: none, or another process's */
    char **made;             /* the journal's lines: "file NAME", "output NAME" */
    size_t n_made, capacity;
    int64_t end;             /* bytes of the journal's whole lines */
    pthread_mutex_t lock;    /* guards the journal */
} exf_resume_directory;

/* Opens the directory if there is one.  outputs: see above, copied.  is_not_writer: another process has it open and locked, and
 * this one reads it alone.  EXF_IO if it is not a run's, or another run uses it.  close() also after a failure. */
exf_code exf_resume_directory_open(exf_resume_directory *d, const char *path, const char *outputs, int is_not_writer,
                                   exf_err *err) EXF_CHECKED;
/* Makes it, its parents too, where there is none. */
exf_code exf_resume_directory_make(exf_resume_directory *d, exf_err *err) EXF_CHECKED;
/* Frees what d holds; files stay. */
void exf_resume_directory_close(exf_resume_directory *d);

/* Starts a file, in place of what an earlier run made under that name. */
exf_code exf_resume_directory_create(exf_resume_directory *d, const char *name, exf_output_file **out, exf_err *err) EXF_CHECKED;
/* Enters an output into the journal, before it is made, and removes what an earlier run made of it.  EXF_IO if something of
 * that name is there which no run of this point made. */
exf_code exf_resume_directory_claim(exf_resume_directory *d, const char *output, exf_err *err) EXF_CHECKED;
/* Opens a file for reading; EXF_FORMAT if it is missing. */
exf_code exf_resume_directory_read(const exf_resume_directory *d, const char *name, exf_file **out, exf_err *err) EXF_CHECKED;
/* *found = 1 if it holds a file of that name. */
exf_code exf_resume_directory_look(const exf_resume_directory *d, const char *name, int *found, exf_err *err) EXF_CHECKED;
/* Gives a file that was created another name, in one step, in place of what an earlier run made under it, when all files
 * made so far are on the disk. */
exf_code exf_resume_directory_replace(exf_resume_directory *d, const char *from, const char *to, exf_err *err) EXF_CHECKED;
/* Removes a file that the journal names; EXF_OK if it is gone, and nothing happens if the journal does not name it. */
exf_code exf_resume_directory_drop(exf_resume_directory *d, const char *name, exf_err *err) EXF_CHECKED;
/* Removes each file of the journal in the directory for which keep returns 0; keep NULL: each. */
exf_code exf_resume_directory_prune(const exf_resume_directory *d, int (*keep)(const void *self, const char *name),
                                    const void *self, exf_err *err) EXF_CHECKED;
/* Removes all that the journal names, the journal and the directory.  EXF_IO if the directory has to stay since it holds
 * something else meanwhile. */
exf_code exf_resume_directory_remove(exf_resume_directory *d, exf_err *err) EXF_CHECKED;
#endif
