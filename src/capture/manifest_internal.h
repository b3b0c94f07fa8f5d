/* manifest_internal.h - one map of a manifest, read key by key; what the manifest*.c files share.
 *
 * Messages name the manifest, the line and the map ("m.yaml:5: source 2: ..."); all are EXF_USAGE. */
#ifndef EXF_CAPTURE_MANIFEST_INTERNAL_H
#define EXF_CAPTURE_MANIFEST_INTERNAL_H
#include "format/yaml.h"

typedef struct {
    const char *path;
    char name[48]; /* "source 2: ", "source 2: origin: ", or "" for the document */
    const exf_yaml *map;
    exf_err *err;
} exf_section;

/* Where word stands in a NULL-terminated list; -1: nowhere. */
int exf_section_index(const char *word, const char *const *list);
/* Fails, naming the nearest known word or all of them. */
exf_code exf_section_unknown(const exf_section *s, int line, const char *what, const char *word,
                             const char *const *known) EXF_CHECKED;
exf_code exf_section_refuse_unknown(const exf_section *s, const char *const *known) EXF_CHECKED;
/* The text of a node that must be a word; of a key, NULL if it is absent; of a key that must be there.
 * Borrowed from the YAML tree. */
exf_code exf_section_word_of(const exf_section *s, const char *key, const exf_yaml *v, const char **out) EXF_CHECKED;
exf_code exf_section_word(const exf_section *s, const char *key, const char **out) EXF_CHECKED;
exf_code exf_section_required(const exf_section *s, const char *key, const char **out) EXF_CHECKED;

/* manifest_origin.c: a source's "origin", where its file can be made from; nothing else here uses
 * it (scripts/materialize_manifest.py does), so it is checked and forgotten. */
exf_code exf_manifest_check_origin(const exf_section *source) EXF_CHECKED;
#endif
