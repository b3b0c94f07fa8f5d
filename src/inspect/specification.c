/* specification.c - see specification.h; the Makefile makes gen/specification.inc. */
#include "inspect/specification.h"

#include <string.h>

static const struct { const char *name, *line; } lines[] = {
#include "gen/specification.inc"
};

enum { N_LINES = sizeof lines / sizeof *lines };

const char *exf_specification_line(const char *name, size_t i)
{
    for (size_t k = 0; k < N_LINES; k++)
        if (strcmp(lines[k].name, name) == 0 && i-- == 0) return lines[k].line;
    return NULL;
}

const char *exf_specification_name(size_t i)
{
    for (size_t k = 0; k < N_LINES; k++)
        if ((k == 0 || strcmp(lines[k].name, lines[k - 1].name) != 0) && i-- == 0) return lines[k].name;
    return NULL;
}
