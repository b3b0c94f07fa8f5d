/* yaml.h - reads YAML documents, the only wrapper of libyaml, and writes scalars that exf_yaml_parse() reads back.
 *
 * The subset that recipes and manifests need: one document of maps, lists and
 * scalars, in block or flow style, so that JSON is read too.  Refused with file
 * and line: duplicate keys; keys that are lists, maps, block text, null or
 * empty; anchors, aliases, tags, merge keys; several documents; lists and maps
 * nested deeper than 32; more than 1 MiB; invalid UTF-8 and NUL characters; an
 * empty document.  Scalars stay text; the caller parses them.
 *
 * Errors: the document is the user's own, so whatever is wrong in it is
 * EXF_USAGE; a file that cannot be read is EXF_IO.  *out is then NULL.
 * Ownership: exf_yaml_free() releases the tree. */
#ifndef EXF_FORMAT_YAML_H
#define EXF_FORMAT_YAML_H
#include "base/text.h"

#include <stddef.h>

enum { EXF_YAML_MOST_BYTES = 1 << 20 }; /* of a document */

typedef enum { EXF_YAML_SCALAR, EXF_YAML_LIST, EXF_YAML_MAP } exf_yaml_kind;

typedef struct exf_yaml {
    exf_yaml_kind kind;
    int line;                /* 1-based, where the node starts */
    size_t at;               /* the same as a number of characters, not bytes, from the document's start */
    int is_null;             /* unquoted and empty, ~, null, Null or NULL */
    char *text;              /* SCALAR: its characters, NUL-terminated, as written also when null */
    size_t n;                /* LIST, MAP: number of children */
    struct exf_yaml **child; /* LIST: items; MAP: values, in file order */
    char **key;              /* MAP: keys */
} exf_yaml;

/* `where` names the document in messages: "demo.yaml". */
exf_code exf_yaml_parse(exf_yaml **out, const char *bytes, size_t len, const char *where, exf_err *err) EXF_CHECKED;
exf_code exf_yaml_load(exf_yaml **out, const char *path, exf_err *err) EXF_CHECKED;
void exf_yaml_free(exf_yaml *root); /* NULL is allowed */

/* The value of a map's key; NULL if absent or root is no map. */
const exf_yaml *exf_yaml_get(const exf_yaml *map, const char *key);
const char *exf_yaml_kind_name(const exf_yaml *node); /* "a scalar", "a list", "a map"; NULL: "missing" */

/* ---- writing -------------------------------------------------------- */
/* Appends s, which must be valid UTF-8, so that every reader of YAML takes it for this text.  A word stands plain; what
 * YAML 1.1 or 1.2 could take for null, a truth, a number or a date is quoted, as is all else: the single way, in which
 * only the quote itself is doubled, or, where a character would break the line, in double quotes with escapes. */
exf_code exf_yaml_add_scalar(exf_text *out, const char *s, exf_err *err) EXF_CHECKED;
/* The same for a value that may be a number or a truth: these stand plain. */
exf_code exf_yaml_add_value(exf_text *out, const char *s, exf_err *err) EXF_CHECKED;
#endif
