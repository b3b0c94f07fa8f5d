/* manifest_internal.h - reads one map of a manifest key by key; shared by manifest*.c.
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

/* Index of word in a NULL-terminated list; -1 if it is not in the list. */
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

/* manifest.c: checks a source's "origin", the data set from which
 * scripts/materialize_manifest.py makes its file; the value is not kept. */
exf_code exf_manifest_check_origin(const exf_section *source) EXF_CHECKED;
#endif
