/* terminal.h - prints on stdout what comes from a file: nothing that a terminal would obey passes. */
#ifndef EXF_TOOL_TERMINAL_H
#define EXF_TOOL_TERMINAL_H

/* Prints a text, padded with blanks to at least `width` bytes, "?" for what exf_printable_bytes() refuses. */
void exf_print_text(const char *text, int width);
#endif
