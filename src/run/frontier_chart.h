/* frontier_chart.h - draws the quality-cost frontier as a chart of KL over cost, for a terminal
 * and as a picture.  Each variant is a letter; those on the frontier are marked. */
#ifndef EXF_RUN_FRONTIER_CHART_H
#define EXF_RUN_FRONTIER_CHART_H
#include "base/text.h"
#include "inspect/drawing.h"
#include "validate/frontier.h"

/* on [n_variants] as exf_frontier_mark gives it. */
exf_code exf_frontier_text(const exf_validation *v, const unsigned char *on, exf_text *out, exf_err *err) EXF_CHECKED;
/* The drawing was opened; its page is begun here. */
exf_code exf_frontier_draw(const exf_validation *v, const unsigned char *on, exf_drawing *d, exf_err *err) EXF_CHECKED;
#endif
