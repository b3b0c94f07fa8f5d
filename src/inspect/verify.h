/* verify.h - verifies artifacts against their specification and against each other.
 *
 * Each file is checked for kind and version; every object readable (the digest is
 * reported); structure, counts (data.h), ranges and sentinels as its specification says;
 * consequences of these (a pool's members fall in norm, a target is the best of the
 * pool, a sum of squares bounds its product sum ...); facts that fit the contents.
 * Each pair of files from one chain, capture -> statistics -> tables, is checked for the
 * digest that the later one names, equal facts, and equal counts; statistics are solved again
 * with the settings that their tables record, and give the same bits. */
#ifndef EXF_INSPECT_VERIFY_H
#define EXF_INSPECT_VERIFY_H
#include "artifact/artifact.h"

/* Called for each check that passed with one sentence, file first. */
typedef exf_code (*exf_verify_callback)(void *self, const char *sentence, exf_err *err);

/* Stops at the first check that fails: EXF_FORMAT with the file, the object and what
 * disagrees (also for files that are each fine but of different chains), EXF_VERSION for
 * a file that this program is too old for, EXF_IO for one that cannot be opened. */
exf_code exf_verify(const char *const *paths, size_t n, exf_verify_callback held, void *self, exf_err *err) EXF_CHECKED;
#endif
