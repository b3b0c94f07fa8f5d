/* resume_internal.h - the state of a resume point, shared by resume.c, which makes records, hidden states and points, and
 * resume_point.c, which has what a point names. */
#ifndef EXF_PASS_RESUME_INTERNAL_H
#define EXF_PASS_RESUME_INTERNAL_H
#include "base/parallel.h"
#include "pass/resume.h"
#include "pass/resume_directory.h"

/* A file that belongs to a point. */
typedef struct {
    char *file; /* its name in the directory */
    int layer;
    char sha256[EXF_SHA256_HEX];
} exf_resume_record;

typedef struct {
    exf_output_file *out;      /* while the file is written */
    char *file;                /* "hidden-<n>"; NULL: none */
    uint64_t bytes;
    char (*sha256)[EXF_SHA256_HEX]; /* [n_chunks] */
    size_t n_chunks;
    exf_resume_progress progress; /* of the run when it saved these hidden states */
} exf_resume_hidden;

struct exf_resume {
    exf_resume_directory directory;
    char *path; /* of resume.json, for messages */
    exf_provenance facts;
    int64_t every_layers;
    double every_seconds;
    int is_not_writer;            /* 1: another process makes the point */
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

/* ---- resume_point.c --------------------------------------------------------------------------------- */

/* Returns the record of a file; NULL if there is none. */
exf_resume_record *exf_resume_find_record(const exf_resume *r, const char *file);
/* Adds a record or replaces the one of the same file. */
exf_code exf_resume_set_record(exf_resume *r, const char *file, int layer, const char *sha256, exf_err *err) EXF_CHECKED;
/* Makes room for the checksums of so many bytes. */
exf_code exf_resume_new_checksums(exf_resume_hidden *h, uint64_t bytes, exf_err *err) EXF_CHECKED;
/* Writes the text of resume.json for the point of r->next and all records of its layers.  The last member has the SHA-256 of the
 * text without it. */
exf_code exf_resume_point_text(exf_resume *r, exf_text *out, exf_err *err) EXF_CHECKED;
/* Reads resume.json into r: EXF_VERSION for another schema, EXF_MODEL where a fact differs. */
exf_code exf_resume_read_point(exf_resume *r, exf_err *err) EXF_CHECKED;
#endif
