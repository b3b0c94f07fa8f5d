/* run_resume.h - opens the resume point of a run as the recipe says: runtime.resume and
 * runtime.checkpoint.* (pass/resume.h). */
#ifndef EXF_RUN_RUN_RESUME_H
#define EXF_RUN_RUN_RESUME_H
#include "pass/resume.h"
#include "recipe/recipe.h"
#include "recipe/run_directory.h"

#define EXF_RUN_RESUME_PREFIX ".exfold-resume-" /* before the stage, the name of a resume point in the output directory */

/* Opens the resume point of a stage ("calibrate"): EXF_RUN_RESUME_PREFIX "<stage>" in the output directory, or in
 * runtime.checkpoint.directory <stage>[-<i>-of-<n>]-<id>, where id are 12 digits of the SHA-256 of the output directory's
 * path: runs with other outputs have other points.  If the run goes on from a point, says so and sets
 * r->force: the outputs that are there are the run's own. */
exf_code exf_run_resume_open(exf_resume **out, exf_recipe *r, const exf_run_directory *dir, const exf_provenance *facts,
                             const char *stage, exf_err *err) EXF_CHECKED;
/* *found = 1 if a stage has a resume point there. */
exf_code exf_run_resume_look(const exf_recipe *r, const exf_run_directory *dir, const char *stage, int *found,
                             exf_err *err) EXF_CHECKED;
/* Ends the run with result rc: deletes the point of a run that succeeded.  Where a run with a point was interrupted,
 * returns EXF_STOPPED and says in err how to go on; otherwise returns rc.  Frees resume. */
exf_code exf_run_resume_close(exf_resume *resume, exf_code rc, exf_err *err) EXF_CHECKED;
#endif
