/* ranks_one.h - inside src/ranks: what a process of its own does where ranks would share or exchange, and what needs no
 * MPI. */
#ifndef EXF_RANKS_RANKS_ONE_H
#define EXF_RANKS_RANKS_ONE_H
#include "ranks/ranks.h"

exf_place exf_one_place(void);
exf_code exf_one_gather(const void *bytes, size_t n, exf_ranks_gathered *out, exf_err *err) EXF_CHECKED;
/* Gives, of two texts that differ, the first line in which they do, from where it can be seen: a line that is too long to
 * be shown begins at the word that differs, or a little before its first byte that does. */
enum { EXF_ONE_EXCERPT = 320 };
void exf_one_difference(const char *a, const char *b, char line_a[EXF_ONE_EXCERPT], char line_b[EXF_ONE_EXCERPT]);
/* A window of pages of its own, from mmap(). */
exf_code exf_one_window(exf_ranks_window *w, size_t bytes, exf_err *err) EXF_CHECKED;
void exf_one_window_free(exf_ranks_window *w);
#endif
