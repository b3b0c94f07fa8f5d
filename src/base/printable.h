/* printable.h - which characters of a foreign text a terminal may have.
 *
 * Refused is what terminals and readers of logs obey: control characters, marks that turn the writing's
 * direction, separators of lines, and bytes that are no UTF-8. */
#ifndef EXF_BASE_PRINTABLE_H
#define EXF_BASE_PRINTABLE_H
#include <stddef.h>

/* Bytes of the character at s (not its end), or 0 if it is refused. */
size_t exf_printable_bytes(const char *s);
/* Puts "?" in place of each byte that is refused. */
void exf_make_printable(char *s);
#endif
