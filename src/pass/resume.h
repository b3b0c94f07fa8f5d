/* resume.h - a resume point is a run's finished layers on disk, from which a run that was
 * stopped goes on to the same bytes.
 *
 * The directory of a run's resume point holds
 *   exfold-resume-point           the journal: the names of all files that the runs of this point made (resume_directory.c)
 *   resume.json                   the point: facts of the run, layers done, files and their SHA-256
 *   <name>-<l>.safetensors        a record: what layer l left, such as its sums
 *   hidden-<n>                    hidden states after the first n layers: float32, lane after lane
 * A point is made in two steps.  Records and hidden states are written first, under names that the
 * present point does not use; then they are synced and resume.json is replaced in one rename, on a
 * thread beside the next layer.  A process that dies in between leaves the point before.
 *
 * A point is used only if the facts of the run (model, tokens, options, program, device) are equal
 * and every file has its SHA-256: EXF_MODEL or EXF_FORMAT name what differs otherwise.  SHA-256s are of the bytes that
 * the run wrote, so a file that something else put there is never taken.  One run at a time uses a point: it is locked. */
#ifndef EXF_PASS_RESUME_H
#define EXF_PASS_RESUME_H
#include "artifact/provenance.h"
#include "format/safetensors.h"

typedef enum {
    EXF_RESUME_AUTO,    /* goes on from a point if there is one; refuses one of another run */
    EXF_RESUME_REQUIRE, /* EXF_USAGE if there is none */
    EXF_RESUME_NEVER    /* starts over; removes an earlier point, of whatever facts */
} exf_resume_mode;

typedef struct {
    const char *directory;       /* made by a run that saves */
    const char *outputs;         /* the run's output directory, where it may have unfinished outputs; NULL: it has none */
    exf_resume_mode mode;
    const exf_provenance *facts; /* what must be equal for a point to be used */
    int64_t every_layers;        /* saves after so many layers; 0: layers do not matter */
    double every_seconds;        /* saves when so many seconds have passed; 0: time does not matter */
    int is_not_writer;           /* 1: a rank other than 0, which reads the point that rank 0 opened before, and writes
                                  * nothing but its part of the hidden states */
} exf_resume_options;

/* How far a pass is. */
typedef struct {
    int layers_done;
    int joined;            /* 1: no router has run yet, so all lanes have the first one's hidden states */
    uint64_t weight_bytes; /* read from the model checkpoint so far */
    double flops;          /* floating-point operations so far */
} exf_resume_progress;

/* A save may cost at most this share of the time since the save before, whatever every_seconds says. */
#define EXF_RESUME_MOST_COST 0.04
/* The first save is reckoned with so many bytes of hidden states a second; others cost what the one before did. */
#define EXF_RESUME_FIRST_SPEED 1e9

typedef struct exf_resume exf_resume;

/* Opens the run's resume point and locks it, or makes the directory if the run saves.  Borrows nothing.  EXF_IO if
 * something else is there, or another run uses the point; nothing is touched then. */
exf_code exf_resume_open(exf_resume **out, const exf_resume_options *o, exf_err *err) EXF_CHECKED;
/* Waits for a save under way, drops its failure, and frees r; files stay.  NULL is allowed. */
void exf_resume_free(exf_resume *r);
/* Returns 1 if the run saves points (every_layers or every_seconds is set). */
int exf_resume_saves(const exf_resume *r);
/* Returns how far the run was at the point that was opened; all 0 if there was none. */
const exf_resume_progress *exf_resume_start(const exf_resume *r);
/* Returns the layers done of the point that is on disk now; 0: there is none. */
int exf_resume_saved_layers(const exf_resume *r);

/* ---- records ---------------------------------------------------------------------------- */

/* Writes a layer's record, if the run saves points; one that a run wrote before without a point is replaced.
 * Thread-safe for different layers or names. */
exf_code exf_resume_put(exf_resume *r, const char *name, int layer, const exf_tensor *tensors, size_t n,
                        exf_err *err) EXF_CHECKED;
/* Opens a record of the point; EXF_FORMAT if it is absent or differs from its SHA-256.  The caller closes *out. */
exf_code exf_resume_get(const exf_resume *r, const char *name, int layer, exf_st_file **out, exf_err *err) EXF_CHECKED;
/* Reads the whole tensor `name`, which must have `expected`'s dtype and shape, into data. */
exf_code exf_resume_read(const exf_st_file *f, const exf_tensor *expected, void *data, exf_err *err) EXF_CHECKED;

/* ---- hidden states ---------------------------------------------------------------------- */

enum { EXF_RESUME_CHUNK = 1 << 20 }; /* bytes that have one SHA-256; offsets below are multiples */

/* Returns 1 if a point should be saved now that `done` layers are done; bytes: of its hidden states. */
int exf_resume_due(const exf_resume *r, int done, uint64_t bytes);
/* Starts the file of hidden states after `done` layers, of so many bytes, after waiting for the save before. */
exf_code exf_resume_hidden_begin(exf_resume *r, int done, uint64_t bytes, exf_err *err) EXF_CHECKED;
/* Writes n bytes at an offset, on n_threads threads.  n is a multiple of EXF_RESUME_CHUNK, but at the end of the file. */
exf_code exf_resume_hidden_put(exf_resume *r, uint64_t offset, const void *bytes, size_t n, int n_threads,
                               exf_err *err) EXF_CHECKED;
/* Has sync(self) make the run's unfinished output durable before each point, on the thread that saves it. */
void exf_resume_sync_first(exf_resume *r, exf_code (*sync)(void *self, exf_err *err), void *self);
/* Of several ranks, rank 0 begins the file, the others join it at its path, and each writes its own rows.  A chunk of
 * two ranks' rows is rank 0's to write; digests of chunks that others wrote are set there. */
const char *exf_resume_hidden_path(const exf_resume *r);
exf_code exf_resume_hidden_join(exf_resume *r, uint64_t bytes, const char *path, exf_err *err) EXF_CHECKED;
char *exf_resume_hidden_digest(const exf_resume *r, size_t chunk); /* [EXF_SHA256_HEX] */
/* Ends what was joined: its bytes are on the disk. */
exf_code exf_resume_hidden_leave(exf_resume *r, exf_err *err) EXF_CHECKED;
/* Makes the point of these hidden states and all records of layers done so far, beside other work. */
exf_code exf_resume_save(exf_resume *r, const exf_resume_progress *now, exf_err *err) EXF_CHECKED;
/* Waits for a save under way and returns its result. */
exf_code exf_resume_wait(exf_resume *r, exf_err *err) EXF_CHECKED;

/* Opens the point's hidden states, which must have so many bytes, and reads n bytes at an offset. */
exf_code exf_resume_hidden_open(const exf_resume *r, uint64_t bytes, exf_file **out, exf_err *err) EXF_CHECKED;
exf_code exf_resume_hidden_get(const exf_resume *r, const exf_file *f, uint64_t offset, void *to, size_t n, int n_threads,
                               exf_err *err) EXF_CHECKED;

/* Enters an unfinished output into the journal, ".NAME.unfinished" in the output directory: the run is about to make it,
 * and an earlier run's is removed.  EXF_IO if something else has that name.  Only if the run saves. */
exf_code exf_resume_claim_output(exf_resume *r, const char *name, exf_err *err) EXF_CHECKED;

/* Deletes the point, with unfinished outputs that are still there: its run is complete, or starts over.  Files that no
 * run of the point made stay (EXF_IO names one). */
exf_code exf_resume_remove(exf_resume *r, exf_err *err) EXF_CHECKED;
#endif
