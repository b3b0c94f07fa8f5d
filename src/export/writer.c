/* writer.c - the table of export targets, made from the files in this folder. */
#include "export/export.h"

#include "base/text.h"

#include <string.h>

#define X(name) extern const exf_writer exf_writer_##name;
#include "gen/writer.inc"
#undef X

static const exf_writer *const writers[] = {
#define X(name) &exf_writer_##name,
#include "gen/writer.inc"
#undef X
};

const exf_writer *exf_writer_at(size_t i)
{
    return i < sizeof writers / sizeof writers[0] ? writers[i] : NULL;
}

const exf_writer *exf_writer_find(const char *name)
{
    for (size_t i = 0; exf_writer_at(i); i++)
        if (strcmp(writers[i]->name, name) == 0) return writers[i];
    return NULL;
}

exf_code exf_writer_require(const char *name, const exf_writer **out, exf_err *err)
{
    exf_text known = {0};
    exf_code rc = EXF_OK;
    *out = exf_writer_find(name);
    if (*out) return EXF_OK;
    for (size_t i = 0; rc == EXF_OK && exf_writer_at(i); i++) rc = exf_text_addf(&known, err, "%s%s", i ? ", " : "", writers[i]->name);
    if (rc == EXF_OK) rc = exf_fail(err, EXF_USAGE, "output.targets: \"%s\" is not known (known: %s)", name, known.s);
    exf_text_free(&known);
    return rc;
}
