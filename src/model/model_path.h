/* model_path.h - explains a path at which no checkpoint directory is. */
#ifndef EXF_MODEL_MODEL_PATH_H
#define EXF_MODEL_MODEL_PATH_H
#include "base/err.h"

/* EXF_OK for a directory that has a config.json, and for any path of which nothing better is known than
 * what opening config.json there says.  EXF_USAGE, with the command or the path that mends it, for
 *   a hub's name (OWNER/MODEL, where no OWNER exists): how to download it;
 *   the folder of a hub cache, which keeps checkpoints in snapshots/REVISION: which of them to name;
 *   a file, such as a .gguf, a shard or config.json itself. */
exf_code exf_model_check_path(const char *dir, exf_err *err) EXF_CHECKED;
#endif
