/* ptfile_read_internal.h - shared by the files of the .pt reader: the zip archive (ptfile_read_zip.c), the pickle
 * (ptfile_read_pickle.c) and what they become (ptfile_read.c). */
#ifndef EXF_FORMAT_PTFILE_READ_INTERNAL_H
#define EXF_FORMAT_PTFILE_READ_INTERNAL_H
#include "base/file.h"
#include "format/ptfile_read.h"

typedef struct {
    const char *name; /* not terminated */
    size_t len;
    uint64_t size, offset; /* of the data */
    uint32_t crc;
} exf_pt_zip_record;

typedef struct {
    exf_file *file;
    char *directory;   /* the archive's central directory, which names lie in */
    exf_pt_zip_record *record;
    size_t n;
    const char *prefix; /* of all names, "archive/"; not terminated */
    size_t prefix_len;
} exf_pt_zip;

exf_code exf_pt_zip_open(exf_pt_zip *z, const char *path, exf_err *err) EXF_CHECKED;
void exf_pt_zip_close(exf_pt_zip *z);
/* The record of that name behind the prefix; NULL: there is none. */
const exf_pt_zip_record *exf_pt_zip_find(const exf_pt_zip *z, const char *name, size_t len);
/* All of a record, its CRC-32 checked, into a buffer of its size. */
exf_code exf_pt_zip_read(const exf_pt_zip *z, const exf_pt_zip_record *r, void *buffer, exf_err *err) EXF_CHECKED;

/* An object of the pickle: an exf_pt_kind or one of these. */
enum { EXF_PT_MARK = 100, EXF_PT_GLOBAL, EXF_PT_STORAGE };

typedef struct {
    int kind;
    int64_t integer;  /* BOOL, INT; GLOBAL: its place among the classes; TENSOR, STORAGE: of elements */
    double real;
    const char *text; /* in the pickle, not terminated */
    size_t len;
    uint32_t *child;  /* LIST: objects; DICT: key, value, ... */
    size_t n, cap;
    exf_tensor view;               /* TENSOR; STORAGE: its dtype */
    const exf_pt_zip_record *from; /* TENSOR, STORAGE */
    uint64_t begin;                /* TENSOR: byte in the storage */
} exf_pt_object;

typedef struct {
    exf_pt_object *at;
    size_t n, cap;
} exf_pt_objects;

/* Runs the pickle [n] of the archive; *root is the object that it ends with. */
exf_code exf_pt_unpickle(exf_pt_objects *out, uint32_t *root, const exf_pt_zip *z, const unsigned char *pickle, size_t n,
                         exf_err *err) EXF_CHECKED;
void exf_pt_objects_free(exf_pt_objects *o);
#endif
