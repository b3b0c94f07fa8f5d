/* yaml.h - reading YAML; the one door to libyaml.
 *
 * The subset that recipes and manifests need: one document of maps, lists and
 * scalars.  Refused with file and line: duplicate keys, keys that are no plain
 * scalars, anchors, aliases, tags, merge keys, several documents, nesting deeper
 * than 32, files over 1 MiB, invalid UTF-8, an empty document.  Scalars stay text; who reads them gives
 * them a type.  Ownership: exf_yaml_free() releases the tree. */
#ifndef EXF_FORMAT_YAML_H
#define EXF_FORMAT_YAML_H
#include "base/err.h"

#include <stddef.h>

typedef enum { EXF_YAML_SCALAR, EXF_YAML_LIST, EXF_YAML_MAP } exf_yaml_kind;

typedef struct exf_yaml {
    exf_yaml_kind kind;
    int line;                /* 1-based, where the node starts */
    int is_null;             /* a plain empty scalar, ~ or null */
    char *text;              /* SCALAR: its characters, NUL-terminated (NUL inside is refused) */
    size_t n;                /* LIST, MAP: number of children */
    struct exf_yaml **child; /* LIST: items; MAP: values, in file order */
    char **key;              /* MAP: keys */
} exf_yaml;

exf_code exf_yaml_parse(exf_yaml **out, const char *bytes, size_t len, const char *where, exf_err *err) EXF_CHECKED;
exf_code exf_yaml_load(exf_yaml **out, const char *path, exf_err *err) EXF_CHECKED;
void exf_yaml_free(exf_yaml *root); /* NULL is allowed */

/* The value of a map's key; NULL if absent or root is no map. */
const exf_yaml *exf_yaml_get(const exf_yaml *map, const char *key);
const char *exf_yaml_kind_name(const exf_yaml *node); /* "a scalar", "a list", "a map" */
#endif
