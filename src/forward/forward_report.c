/* forward_report.c - see forward_report.h. */
#include "forward/forward_report.h"

void exf_report_add_times(exf_forward_report *report, const exf_workspace *space, int n)
{
    for (int i = 0; space && i < n; i++) {
        const exf_part_times *t = &space[i].times;
        report->mixer += t->mixer;
        report->router += t->router;
        report->experts += t->experts;
        report->observe += t->observe;
        report->head += t->head;
        report->flops += t->flops;
    }
}
