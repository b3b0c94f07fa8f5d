/* checkpoint.h - finds and reads the tensors of a checkpoint directory in any of its files.
 *
 * Either model.safetensors, or model.safetensors.index.json with its shards.
 * An index is refused when a shard is missing or its name is no plain file name
 * (absolute, "..", any separator), when a tensor is in two shards or in another
 * than the index says, or when index and shards do not hold the same names.
 * Links to files are followed: a hub's cache is a directory of links into its
 * blob store.  Nothing is copied: tensors are read on demand, by position.
 * Reads are thread-safe. */
#ifndef EXF_MODEL_CHECKPOINT_H
#define EXF_MODEL_CHECKPOINT_H
#include "format/safetensors.h"

typedef struct {
    const exf_st_file *file;
    const exf_st_tensor *tensor;
} exf_stored_tensor;

static inline const char *exf_stored_name(const exf_stored_tensor *s)
{
    return s->tensor->view.name;
}

/* An open checkpoint: read by all, changed by none. */
typedef struct {
    exf_st_file **file; /* [n_files] */
    size_t n_files, cap_files;
    exf_stored_tensor *stored; /* [n_stored] in order of name */
    size_t n_stored;
} exf_checkpoint;

/* dir NULL: a checkpoint without files, for a model that has only a config.json. */
exf_code exf_checkpoint_open(exf_checkpoint **out, const char *dir, exf_err *err) EXF_CHECKED;
/* Returns 1 if the directory holds an index or any .safetensors file that is not an adapter's. */
int exf_checkpoint_present(const char *dir);
void exf_checkpoint_close(exf_checkpoint *c); /* NULL is allowed */
/* Chooses how tensors are read from now on (exf_file_use()), in every file. */
exf_code exf_checkpoint_use(exf_checkpoint *c, exf_io io, exf_err *err) EXF_CHECKED;
const exf_stored_tensor *exf_checkpoint_find(const exf_checkpoint *c, const char *name);   /* NULL if absent */

/* EXF_MODEL naming the first file that changed or was replaced since it was opened (exf_file_unchanged()). */
exf_code exf_checkpoint_unchanged(const exf_checkpoint *c, exf_err *err) EXF_CHECKED;
#endif
