/* expert_order.h - experts in the order in which a pruned model keeps them, shared by the writers for runtimes that prune.
 *
 * The score is REAP's, the mean of w ||E(x)|| over an expert's tokens (tables.h, contribution), as in the variant reapN.
 * With R ranks of expert parallelism, of which rank r holds experts [r E/R, (r+1) E/R), the order goes round by round: the
 * best expert of every rank that is not listed yet, by score.  The first N then have N/R of each rank for every N that R
 * divides.  Ties go to the lower number. */
#ifndef EXF_EXPORT_EXPERT_ORDER_H
#define EXF_EXPORT_EXPERT_ORDER_H
#include "export/writer.h"

/* Refuses ranks that do not divide E, and tables without the score. */
exf_code exf_expert_order_check(const exf_export *x, exf_err *err) EXF_CHECKED;
/* The same, and a number to keep that is not given, is not in [top_k, E), or that the ranks do not divide. */
exf_code exf_expert_order_check_keep(const exf_export *x, exf_err *err) EXF_CHECKED;
/* *out = [L, E] expert numbers; the caller frees them.  The export must have been checked. */
exf_code exf_expert_order_make(int32_t **out, const exf_export *x, exf_err *err) EXF_CHECKED;
#endif
