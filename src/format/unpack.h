/* unpack.h - reads a text file from front to back, unpacked where it is compressed with gzip (zlib) or zstd (libzstd).
 *
 * Which it is follows from the first bytes, not from the name.  All members of a gzip file and all frames of a zstd file are
 * read, skippable frames passed over, also before the first; bytes after the last one, but for zeros after gzip's, are an error,
 * and so is a file that ends inside one.  The checksums that they carry are
 * compared.  Memory is bounded: a zstd window of at most 128 MiB, which is what the zstd command takes without --long=31.
 *
 * Files may be hostile: what is no text but many equal bytes unpacks to thousands of times its size.  Beyond EXF_UNPACK_FREE
 * bytes a file may unpack to at most EXF_UNPACK_MOST_TIMES its own size; text comes to 3 to 20 times. */
#ifndef EXF_FORMAT_UNPACK_H
#define EXF_FORMAT_UNPACK_H
#include "base/file.h"

enum { EXF_UNPACK_FREE = 64 << 20, EXF_UNPACK_MOST_TIMES = 256 };

typedef enum { EXF_PLAIN, EXF_GZIP, EXF_ZSTD } exf_packing;

/* Tells from the first bytes how a file is compressed. */
exf_packing exf_packing_of(const void *bytes, size_t n);
/* "gzip" or "zstd"; "" of a plain file. */
const char *exf_packing_name(exf_packing p);
/* Returns the length of a file's name without ".gz" or ".zst". */
size_t exf_unpacked_name(const char *name);

typedef struct exf_unpacker exf_unpacker;

/* f: borrowed until exf_unpack_close(). */
exf_code exf_unpack_open(exf_unpacker **out, const exf_file *f, exf_err *err) EXF_CHECKED;
void exf_unpack_close(exf_unpacker *u); /* NULL is allowed */
exf_packing exf_unpack_kind(const exf_unpacker *u);
/* Reads the next n bytes; *got is smaller only at the end.  EXF_FORMAT naming the file where it is damaged or cut, EXF_MODEL
 * where it unpacks to more than the bound, EXF_NOSPACE. */
exf_code exf_unpack_read(exf_unpacker *u, void *buf, size_t n, size_t *got, exf_err *err) EXF_CHECKED;
#endif
