/* ptfile.h - writes files that torch.load() reads, without Python; format facts:
 *
 *   a zip file of stored (not compressed) records, their data at multiples of 64
 *   bytes, each with its CRC-32, in this order:
 *     archive/data.pkl                  a pickle of protocol 2
 *     archive/byteorder                 "little"
 *     archive/data/<i>                  raw storage of the i-th tensor, little endian
 *     archive/<extra>                   the caller's own records, which torch.load passes over
 *     archive/version                   "3\n"
 *     archive/.data/serialization_id    40 digits that depend on nothing but the contents
 *
 * A tensor in the pickle is torch._utils._rebuild_tensor_v2(("storage",
 * torch.FloatStorage, "<i>", "cpu", elements), 0, shape, strides, False,
 * OrderedDict()): all of it is on the list of torch.load(weights_only=True).
 * Every tensor has a storage of its own, so that a loader that writes into one
 * does not write into another.
 *
 * Zip64 fields stand where a size or an offset is 2^32-1 or more, or more than
 * 65534 records are there, and nowhere else.  The date of every record is
 * 1980-01-01: equal inputs give equal bytes. */
#ifndef EXF_FORMAT_PTFILE_H
#define EXF_FORMAT_PTFILE_H
#include "base/tensor.h"

#include <stddef.h>

typedef enum {
    EXF_PT_NONE,
    EXF_PT_BOOL,
    EXF_PT_INT,
    EXF_PT_REAL,
    EXF_PT_TEXT,
    EXF_PT_TENSOR,
    EXF_PT_LIST,
    EXF_PT_DICT
} exf_pt_kind;

/* A Python object; borrows all it points to. */
typedef struct exf_pt {
    const char *key; /* in a DICT: UTF-8, no two alike; elsewhere ignored */
    exf_pt_kind kind;
    int64_t integer; /* BOOL: 0 is False; INT */
    double real;
    const char *text;          /* UTF-8 */
    exf_tensor tensor;         /* F32, I32 or I64, with its data; rank 0 is a scalar tensor */
    const struct exf_pt *item; /* LIST, DICT: n of them, in this order */
    size_t n;
} exf_pt;

/* A record beside torch's own: "extra/provenance.json". */
typedef struct {
    const char *name;
    const void *bytes;
    size_t n;
} exf_pt_record;

/* Refused with EXF_FORMAT before anything is created: text that is not UTF-8, keys
 * given twice, other dtypes, negative or overflowing shapes, LIST and DICT nested
 * deeper than 16.  A target that exists is refused unless force; all or nothing. */
exf_code exf_pt_write(const char *target, int force, const exf_pt *root, const exf_pt_record *extra, size_t n_extra,
                      exf_err *err) EXF_CHECKED;

/* Tests: from which size or offset on Zip64 fields are used (normally 2^32-1), so
 * that a small file shows the large one's layout; 0 sets the normal one again. */
void exf_pt_zip64_from(uint64_t bytes);
#endif
