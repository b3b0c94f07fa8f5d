/* pass_hidden_file.h - moves the hidden states of a pass to the file of a resume point, and back.
 *
 * The file has the run's rows, lane after lane, each lane from a multiple of EXF_RESUME_CHUNK on.  A rank has some
 * rows of each lane: it writes the chunks that are its own, and gives the bytes of chunks that it shares with its
 * neighbours to rank 0, which writes those.  So the file does not show how many ranks there were. */
#ifndef EXF_FORWARD_PASS_HIDDEN_FILE_H
#define EXF_FORWARD_PASS_HIDDEN_FILE_H
#include "forward/pass.h"
#include "resume/resume.h"

/* Return the tokens of the whole run, of which the pass may be a part, and the bytes of the file. */
size_t exf_pass_run_tokens(const exf_pass *p);
uint64_t exf_pass_file_bytes(const exf_pass *p);
/* Writes all rows of this pass to the file that was begun or joined; collective. */
exf_code exf_pass_hidden_put(exf_pass *p, exf_err *err) EXF_CHECKED;
/* Reads them back from the open file. */
exf_code exf_pass_hidden_get(exf_pass *p, const exf_file *file, exf_err *err) EXF_CHECKED;
#endif
