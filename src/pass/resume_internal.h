/* resume_internal.h - the state of a resume point. */
#ifndef EXF_PASS_RESUME_INTERNAL_H
#define EXF_PASS_RESUME_INTERNAL_H
#include "base/thread_pool.h"
#include "base/text.h"
#include "pass/resume.h"
#include "pass/resume_directory.h"

#include <pthread.h>

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
    double last_time, last_cost;  /* seconds: when it ended, and what it held the run up */
    double began;
    exf_background saving;        /* makes a point */
    exf_code (*sync)(void *self, exf_err *err); /* of the run's unfinished output; NULL: it has none */
    void *sync_self;
};

void exf_resume_hidden_free(exf_resume_hidden *h);
/* Adds a record or replaces the one of the same file. */
exf_code exf_resume_record_set(exf_resume *r, const char *file, int layer, const char *sha256, exf_err *err) EXF_CHECKED;

/* The text of resume.json for the point of `h` and all records of its layers. */
exf_code exf_resume_point_text(const exf_resume *r, const exf_resume_hidden *h, exf_text *out, exf_err *err) EXF_CHECKED;
/* Reads resume.json into r: EXF_VERSION for another schema, EXF_MODEL where a fact differs. */
exf_code exf_resume_point_read(exf_resume *r, exf_err *err) EXF_CHECKED;
#endif
