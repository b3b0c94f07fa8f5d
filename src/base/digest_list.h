/* digest_list.h - a digest list is a text of names with a SHA-256 each: "embedding:ab12... 0.experts:cd34...",
 * 64 hexadecimal digits after each colon, one blank between two entries. */
#ifndef EXF_BASE_DIGEST_LIST_H
#define EXF_BASE_DIGEST_LIST_H
#include "base/hash.h"

enum { EXF_DIGEST_NAME = 32 }; /* room for a name and a NUL */

typedef struct {
    char name[EXF_DIGEST_NAME], hex[EXF_SHA256_HEX];
} exf_digest_entry;

/* Reads the entry at *text and moves *text after it; returns 0 at the end, or -1 where the text is no such list. */
int exf_digest_list_next(const char **text, exf_digest_entry *out);
/* Returns 1 and the digest of `name`, or 0 if the list does not have it. */
int exf_digest_list_find(const char *text, const char *name, char hex[EXF_SHA256_HEX]);
#endif
