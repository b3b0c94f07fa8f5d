/* ranks_one.h - inside src/ranks: what a process of its own does where ranks would share or exchange. */
#ifndef EXF_RANKS_RANKS_ONE_H
#define EXF_RANKS_RANKS_ONE_H
#include "ranks/ranks.h"

exf_place exf_one_place(void);
exf_code exf_one_gather(const void *bytes, size_t n, exf_ranks_gathered *out, exf_err *err) EXF_CHECKED;
/* A window of pages of its own, from mmap(). */
exf_code exf_one_window(exf_ranks_window *w, size_t bytes, exf_err *err) EXF_CHECKED;
void exf_one_window_free(exf_ranks_window *w);
#endif
