/* resume_internal.h - the state of a resume point, and its directory. */
#ifndef EXF_PASS_RESUME_INTERNAL_H
#define EXF_PASS_RESUME_INTERNAL_H
#include "base/file.h"
#include "base/parallel.h"
#include "base/text.h"
#include "pass/resume.h"

#include <pthread.h>

/* ---- resume_directory.c: who made which file in the directory, and its lock ------------------------ */

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

/* Opens the directory if there is one.  outputs: see above, copied.  follows: another process has it open and locked, and
 * this one reads it alone.  EXF_IO if it is not a run's, or another run uses it.  close() also after a failure. */
exf_code exf_resume_directory_open(exf_resume_directory *d, const char *path, const char *outputs, int follows,
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

/* ---- a resume point ------------------------------------------------------------------------------ */

/* A file that belongs to a point. */
typedef struct {
    char *file; /* its name in the directory */
    int layer;
    char sha256[EXF_SHA256_HEX];
} exf_resume_record;

typedef char exf_resume_digest[EXF_SHA256_HEX];

typedef struct {
    exf_output_file *out;      /* while the file is written */
    char *file;                /* "hidden-<n>"; NULL: none */
    uint64_t bytes;
    exf_resume_digest *sha256; /* [n_chunks] */
    size_t n_chunks;
    exf_resume_progress progress; /* of the run when it saved these hidden states */
} exf_resume_hidden;

struct exf_resume {
    exf_resume_directory directory;
    char *path; /* of resume.json, for messages */
    exf_provenance facts;
    int64_t every_layers;
    double every_seconds;
    int follows;                  /* 1: another process makes the point */
    exf_resume_progress start;    /* of the point that was opened */
    pthread_mutex_t lock;         /* guards the records */
    exf_resume_record *record;
    size_t n_records, capacity;
    exf_resume_hidden now, next;  /* of the point on disk, and of the one that is being made */
    int last_done;                /* layers done when the last save began */
    double began, last_time;      /* exf_clock() when the save began, and when the run went on beside it */
    double last_cost;             /* seconds between the two */
    exf_background saving;        /* makes a point */
    exf_code (*sync)(void *self, exf_err *err); /* of the run's unfinished output; NULL: it has none */
    void *sync_self;
};

/* ---- resume_record.c: the list of records -------------------------------------------------------- */

/* Returns the record of a file; NULL if there is none. */
exf_resume_record *exf_resume_record_find(const exf_resume *r, const char *file);
/* Adds a record or replaces the one of the same file. */
exf_code exf_resume_record_set(exf_resume *r, const char *file, int layer, const char *sha256, exf_err *err) EXF_CHECKED;

/* ---- resume_point.c: resume.json ------------------------------------------------------------------ */

/* Writes the text of resume.json for the point of `h` and all records of its layers. */
exf_code exf_resume_point_text(const exf_resume *r, const exf_resume_hidden *h, exf_text *out, exf_err *err) EXF_CHECKED;
/* Reads resume.json into r: EXF_VERSION for another schema, EXF_MODEL where a fact differs. */
exf_code exf_resume_point_read(exf_resume *r, exf_err *err) EXF_CHECKED;

/* ---- resume_hidden.c: hidden states --------------------------------------------------------------- */

/* Frees what h holds, and drops a file that is being written. */
void exf_resume_hidden_free(exf_resume_hidden *h);
#endif
