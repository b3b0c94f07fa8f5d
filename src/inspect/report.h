/* report.h - writes an inspection as one HTML file that needs no network and no other
 * file.  Without JavaScript it shows the tables; with JavaScript also every layer's
 * matrices, decoded when they are displayed. */
#ifndef EXF_INSPECT_REPORT_H
#define EXF_INSPECT_REPORT_H
#include "inspect/inspection.h"

/* Writes the report.  The page's parts are src/inspect/report/report.{html,css,js}.  Matrices go in as
 *   tokens              U16, or U32 where one is above 65535
 *   scalar, loss        F32, exact
 *   the others          F16, rounded to nearest
 * with NaN for a pair that was never observed; where that would be over 29 MB, all as F16,
 * and where that would be, as U8, 255 steps from the least to the largest value;
 * and norms and expert counts as they are.  title: for the heading, UTF-8; beside: the
 * directory in which to look for validation.json, validation.md and frontier.json. */
exf_code exf_report_write(const exf_inspection *s, const char *title, const char *beside, const char *target, int force,
                          exf_err *err) EXF_CHECKED;
#endif
