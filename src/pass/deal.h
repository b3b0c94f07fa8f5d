/* deal.h - deals the sequences of a run to several parts: to the ranks of a job (ranks/ranks.h), or to shards.
 *
 * A part is a run of consecutive sequences.  Parts are balanced by tokens: the k-th cut of n is that whose tokens
 * before it are nearest to k/n of all, the lower of two equal ones.  Equal sequences give equal parts. */
#ifndef EXF_PASS_DEAL_H
#define EXF_PASS_DEAL_H
#include "base/err.h"
#include "pass/batch.h"

/* Sets first [n + 1]: part i has sequences [first[i], first[i + 1]), at least one.  group_of: [n_sequences] not
 * falling, sequences of equal numbers stay together, such as those of a decode batch; NULL: each is a group.
 * EXF_USAGE if there are fewer groups than parts. */
exf_code exf_deal(size_t *first, const exf_batch *all, const size_t *group_of, size_t n, exf_err *err) EXF_CHECKED;
/* Makes a batch of sequences [first, end) of another one: `ids` is borrowed, `span`, whose rows begin at 0, is
 * allocated; exf_mem_free() frees it.  Row r of the part is row exf_part_row() + r of the whole. */
exf_code exf_batch_part(exf_batch *part, exf_span **span, const exf_batch *all, size_t first, size_t end, exf_err *err) EXF_CHECKED;
size_t exf_part_row(const exf_batch *all, size_t first);
#endif
