/* accumulate_record_internal.h - the parts of a recording, inside src/accumulate: accumulate_record.c has its beginning and end and
 * those of its parts, accumulate_record_rows.c what is added between them. */
#ifndef EXF_ACCUMULATE_RECORD_INTERNAL_H
#define EXF_ACCUMULATE_RECORD_INTERNAL_H
#include "accumulate/accumulate.h"
#include "exfold/accumulate.h"

#include <pthread.h>

typedef struct {
    exf_record *of;
    int32_t number;
    pthread_mutex_t lock;
    exf_accumulator *sums; /* NULL: no part is under way */
    unsigned char *seen;   /* [rows of the part] 1: the row was added */
    uint64_t missing;
    exf_err failed;        /* of the row that was half added; its code is EXF_OK if there is none */
} recorded_layer;

typedef struct {
    char *path;
    exf_sequence_list sequences;
} recorded_part;

struct exf_record {
    char *path;
    int replace, n_layers;
    recorded_layer *layer;   /* [n_layers] */
    exf_run_shape shape;     /* of the part under way */
    exf_accumulate_options options;
    exf_provenance facts;    /* of the run */
    exf_provenance settings; /* by which tables are to be solved */
    recorded_part *part;     /* [n_parts] that are done, and after them the one under way */
    size_t n_parts, cap_parts;
    size_t *first;           /* [n_sequences] first row of each sequence of the part under way */
    int under_way;
    exf_provenance part_facts;
    exf_statistics_writer writer;
};

/* Returns rc as the functions of include/exfold/accumulate.h do, and copies the error's sentence. */
int exf_recorded_status(exf_code rc, const exf_err *err, char *message, size_t size);
#endif
