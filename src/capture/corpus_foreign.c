/* corpus_foreign.c - knows files that hold no text as this program reads it, from their first bytes: archives, tables, pages, texts
 * in other encodings; see corpus_internal.h. */
#include "capture/corpus_internal.h"

#include "base/file.h"
#include "format/unpack.h"

#include <stdio.h>
#include <string.h>

#define PIPED " | PROGRAM --text -"

static const struct { const char *magic; size_t n; exf_foreign is; } kinds[] = {
    {"\xfd""7zXZ", 5, {"compressed with xz", "unpack it first, or pipe it: xz -dc FILE" PIPED, NULL}},
    {"BZh", 3, {"compressed with bzip2", "unpack it first, or pipe it: bzip2 -dc FILE" PIPED, NULL}},
    {"PK\3\4", 4, {"a zip archive", "unpack it first: unzip", NULL}},
    {"PAR1", 4, {"a Parquet table", NULL, "table_lines.py"}},
    {"ARROW1", 6, {"an Arrow table", NULL, "table_lines.py"}},
    {"%PDF-", 5, {"a PDF", "extract its text first", NULL}},
    {"\x89HDF\r\n\x1a\n", 8, {"an HDF5 file, not a text", "exfold-validate takes tables by --tables FILE", NULL}},
};

static int is_tar(const char *bytes, size_t len)
{
    return len >= 262 && memcmp(bytes + 257, "ustar", 5) == 0;
}

/* Returns 1 for a stream of Arrow's messages, as datasets keep them: a mark, the length of a schema, and its flatbuffer, whose root
 * lies within its first bytes. */
static int is_arrow_stream(const char *bytes, size_t len)
{
    const unsigned char *b = (const unsigned char *)bytes;
    return len >= 12 && memcmp(b, "\xff\xff\xff\xff", 4) == 0 && b[6] < 0x10 && b[7] == 0 && b[8] >= 4 && b[8] % 4 == 0 &&
           b[9] == 0 && b[10] == 0 && b[11] == 0;
}

/* Returns 1 for UTF-16: its mark, or a NUL in every second of the first bytes, as in Latin letters without a mark. */
static int is_utf16(const char *bytes, size_t len)
{
    size_t nul[2] = {0, 0}, n = len < 4096 ? len / 2 : 2048;
    if (len >= 2 && (memcmp(bytes, "\xff\xfe", 2) == 0 || memcmp(bytes, "\xfe\xff", 2) == 0)) return 1;
    for (size_t i = 0; i < 2 * n; i++) nul[i % 2] += bytes[i] == 0;
    return n >= 2 && ((nul[0] * 2 > n && nul[1] * 8 < n) || (nul[1] * 2 > n && nul[0] * 8 < n));
}

/* Returns 1 if nothing but letters of one byte stands there: no controls but those of lines. */
static int is_one_byte_text(const char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if ((c < ' ' && !strchr("\t\n\r\f", c)) || c == 0x7f) return 0;
        if (c == 0) return 0;
    }
    return 1;
}

int exf_foreign_find(exf_foreign *out, const char *bytes, size_t len)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (len >= kinds[i].n && memcmp(bytes, kinds[i].magic, kinds[i].n) == 0) {
            *out = kinds[i].is;
            return 1;
        }
    exf_packing again = exf_packing_of(bytes, len); /* the bytes are unpacked once */
    if (again == EXF_GZIP) *out = (exf_foreign){"compressed with gzip twice", "unpack it first: gzip -d", NULL};
    else if (again == EXF_ZSTD) *out = (exf_foreign){"compressed twice", "unpack it first: zstd -d", NULL};
    else if (is_tar(bytes, len)) *out = (exf_foreign){"a tar archive", "unpack it into a directory first, and name that", NULL};
    else if (is_arrow_stream(bytes, len)) *out = (exf_foreign){"an Arrow table", NULL, "table_lines.py"};
    else if (is_utf16(bytes, len)) *out = (exf_foreign){"UTF-16", "pipe it as UTF-8: iconv -f UTF-16 -t UTF-8 FILE" PIPED, NULL};
    else return 0;
    return 1;
}

const char *exf_encoding_advice(const char *bytes, size_t len)
{
    if (is_utf16(bytes, len)) return "; it is UTF-16: iconv -f UTF-16 -t UTF-8 FILE >NEW";
    if (is_one_byte_text(bytes, len)) return "; if it is Latin-1: iconv -f WINDOWS-1252 -t UTF-8 FILE >NEW";
    return "";
}

void exf_foreign_mend(const exf_foreign *f, const char *path, exf_text *out)
{
    char command[EXF_SCRIPT_COMMAND];
    if (!f->script) exf_text_appendf(out, "%s", f->mend);
    else exf_text_appendf(out, "pipe its rows: %s %s" PIPED, exf_script_command(command, f->script), path);
}
