/* corpus_foreign.c - knows files that hold no text as this program reads it, from their first bytes: archives, tables, pages, texts
 * in other encodings; see corpus_internal.h. */
#include "capture/corpus_internal.h"

#include "base/file.h"
#include "base/log.h"
#include "format/unpack.h"

#include <stdio.h>
#include <string.h>

/* Commands, in which FILE stands for the file at hand and PROGRAM for this program. */
#define PIPED " | PROGRAM --text -"

static const struct { const char *magic; size_t n; exf_foreign is; } kinds[] = {
    {"\xfd""7zXZ", 5, {"compressed with xz", "unpack it first, or pipe it: xz -dc FILE" PIPED, NULL}},
    {"BZh", 3, {"compressed with bzip2", "unpack it first, or pipe it: bzip2 -dc FILE" PIPED, NULL}},
    {"PK\3\4", 4, {"a zip archive", "unpack it first: unzip FILE", NULL}},
    {"PAR1", 4, {"a Parquet table", NULL, "table_lines.py"}},
    {"ARROW1", 6, {"an Arrow table", NULL, "table_lines.py"}},
    {"%PDF-", 5, {"a PDF", "extract its text first", NULL}},
    {"\x89HDF\r\n\x1a\n", 8, {"an HDF5 file, not a text", "exfold-validate takes tables by --tables FILE", NULL}},
};

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
    if (again == EXF_GZIP) *out = (exf_foreign){"compressed with gzip twice", "unpack it first: gzip -d FILE", NULL};
    else if (again == EXF_ZSTD) *out = (exf_foreign){"compressed twice", "unpack it first: zstd -d FILE", NULL};
    else if (len >= 262 && memcmp(bytes + 257, "ustar", 5) == 0)
        *out = (exf_foreign){"a tar archive", "unpack it into a directory first, and name that", NULL};
    else if (is_arrow_stream(bytes, len)) *out = (exf_foreign){"an Arrow table", NULL, "table_lines.py"};
    else if (is_utf16(bytes, len)) *out = (exf_foreign){"UTF-16", "pipe it as UTF-8: iconv -f UTF-16 -t UTF-8 FILE" PIPED, NULL};
    else return 0;
    return 1;
}

/* Appends words with the names for which FILE and PROGRAM stand in them; of standard input FILE is any file. */
static void append_named(exf_text *out, const char *words, const char *path)
{
    for (; *words; words++)
        if (exf_starts_with(words, "FILE") && strcmp(path, EXF_STANDARD_INPUT) != 0) {
            exf_text_append_word(out, path);
            words += 3;
        } else if (exf_starts_with(words, "PROGRAM")) {
            exf_text_appendf(out, "%s", exf_log_program());
            words += 6;
        } else {
            exf_text_append(out, words, 1);
        }
}

exf_code exf_encoding_advise(exf_err *err, const char *bytes, size_t len, const char *path)
{
    exf_text advice = {0};
    size_t n = strlen(err->msg);
    if (is_utf16(bytes, len)) append_named(&advice, "; it is UTF-16: iconv -f UTF-16 -t UTF-8 FILE >NEW", path);
    else if (is_one_byte_text(bytes, len))
        append_named(&advice, "; if it is Latin-1: iconv -f WINDOWS-1252 -t UTF-8 FILE >NEW", path);
    if (advice.s && !advice.refused) snprintf(err->msg + n, sizeof err->msg - n, "%s", advice.s);
    exf_text_free(&advice);
    return err->code;
}

void exf_foreign_mend(const exf_foreign *f, const char *path, exf_text *out)
{
    char command[EXF_SCRIPT_COMMAND];
    if (f->script) exf_text_appendf(out, "pipe its rows: %s ", exf_script_command(command, f->script));
    append_named(out, f->script ? "FILE" PIPED : f->mend, path);
}
