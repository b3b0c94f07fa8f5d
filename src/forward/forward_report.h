/* forward_report.h - adds the clocks of workers to the report of a pass or a replay. */
#ifndef EXF_FORWARD_FORWARD_REPORT_H
#define EXF_FORWARD_FORWARD_REPORT_H
#include "forward/forward_options.h"
#include "moe/workspace.h"

/* Adds the seconds and floating-point operations of n workspaces; space may be NULL. */
void exf_report_add_times(exf_forward_report *report, const exf_workspace *space, int n);
#endif
