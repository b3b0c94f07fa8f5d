/* registry.h - a registry that the build makes of a directory: every file src/<room>/<kind>_<name>.c
 * defines an exf_<kind>, the constant exf_<kind>_<name>, whose first member is its name, and
 * build/gen/<kind>.inc lists X(<name>) for each of them (Makefile, `registry`).
 *
 * All registries have the same functions, made by the macros below in the room's <kind>.c:
 *   exf_<kind>_at(i)          in order of name; NULL: past the end
 *   exf_<kind>_find(name)     NULL: unknown
 *   exf_<kind>_require(...)   the same, or EXF_USAGE naming the unknown, all that are known
 *                             and the nearest of them */
#ifndef EXF_BASE_REGISTRY_H
#define EXF_BASE_REGISTRY_H
#include "base/text.h"

/* The candidate (NULL-terminated list) nearest to word by edit distance, or
 * NULL when none is near enough to be meant (more than a third differs). */
const char *exf_nearest(const char *word, const char *const *candidates);

typedef struct {
    const void *const *entry; /* [n] each begins with a const char *, its name; in order of name */
    size_t n;
    int (*counts)(const void *entry); /* 0: the entry may not be asked for here; NULL: all may */
} exf_registry;

const void *exf_registry_find(const exf_registry *d, const char *name); /* NULL: unknown, or it does not count */
/* EXF_USAGE `where: "name" is not known (known: a, b)`. */
exf_code exf_registry_require(const void **out, const exf_registry *d, const char *where, const char *name,
                              exf_err *err) EXF_CHECKED;

/* The table of a kind, between the two inclusions of its list:
 *   #define X(name) extern const exf_writer exf_writer_##name;
 *   #include "gen/writer.inc"
 *   #undef X
 *   EXF_REGISTRY_BEGIN
 *   #define X(name) &exf_writer_##name,
 *   #include "gen/writer.inc"
 *   #undef X
 *   EXF_REGISTRY_END(writer) */
#define EXF_REGISTRY_BEGIN static const void *const entries[] = {
#define EXF_REGISTRY_END(kind)                                                                   \
    }                                                                                          \
    ;                                                                                          \
    static const exf_registry registry = {entries, sizeof entries / sizeof entries[0], NULL};      \
    const exf_##kind *exf_##kind##_at(size_t i)                                                \
    {                                                                                          \
        return i < registry.n ? entries[i] : NULL;                                               \
    }
#define EXF_REGISTRY_FIND(kind)                             \
    const exf_##kind *exf_##kind##_find(const char *name) \
    {                                                     \
        return exf_registry_find(&registry, name);            \
    }
/* where: what names it, "output.targets". */
#define EXF_REGISTRY_REQUIRE(kind, where)                                                        \
    exf_code exf_##kind##_require(const char *name, const exf_##kind **out, exf_err *err)      \
    {                                                                                          \
        const void *entry;                                                                     \
        exf_code rc = exf_registry_require(&entry, &registry, where, name, err);                   \
        *out = entry;                                                                          \
        return rc;                                                                             \
    }
#endif
