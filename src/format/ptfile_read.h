/* ptfile_read.h - reads files of torch.save(), the zip of ptfile.h, without Python and without running anything that they say.
 *
 * A pickle is a program.  Read here is the part of it that makes None, booleans, numbers, text, lists, tuples, dicts and
 * tensors; a class is only looked up in a list of torch's storages, _rebuild_tensor_v2 and OrderedDict, and an opcode or a
 * class beyond that ends the reading with EXF_FORMAT, naming file, opcode and byte.
 *
 * Refused too: records that are compressed or encrypted, lie outside the file or have another CRC-32 than the archive says;
 * a data.pkl of more than EXF_PT_MAX_PICKLE bytes, more objects than EXF_PT_MAX_OBJECTS, nesting deeper than EXF_PT_MAX_DEPTH;
 * tensors that are not dense and row-major, or reach beyond their storage; big-endian files. */
#ifndef EXF_FORMAT_PTFILE_READ_H
#define EXF_FORMAT_PTFILE_READ_H
#include "format/ptfile.h"

enum { EXF_PT_MAX_PICKLE = 16 << 20, EXF_PT_MAX_OBJECTS = 1 << 18, EXF_PT_MAX_DEPTH = 16 };

typedef struct exf_pt_file exf_pt_file;

exf_code exf_pt_open(exf_pt_file **out, const char *path, exf_err *err) EXF_CHECKED;
void exf_pt_close(exf_pt_file *f); /* NULL is allowed */
const char *exf_pt_path(const exf_pt_file *f);
/* Returns the file's object; borrowed.  Tuples are LISTs; a key that is an integer is its digits; a TENSOR has no data and any
 * dtype that torch has a storage of.  Keys may stand twice. */
const exf_pt *exf_pt_root(const exf_pt_file *f);
const exf_pt *exf_pt_get(const exf_pt *dict, const char *key); /* the last of that key; NULL: none, or no dict */
/* Reads a tensor of this file into dst, exf_tensor_bytes() of it; its storage's CRC-32 is checked. */
exf_code exf_pt_read(const exf_pt_file *f, const exf_pt *tensor, void *dst, exf_err *err) EXF_CHECKED;
/* 1 if the file begins as a zip archive does; a file that cannot be read does not. */
int exf_pt_is_one(const char *path);
#endif
