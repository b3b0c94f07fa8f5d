/* writer_npy.c - a directory of NumPy files: <table>.npy for every table of
 * artifact/tables.h, layer_numbers.npy (I32 [L]) and provenance.json (the facts, a JSON
 * object of strings).
 *
 * A .npy file, version 1.0: "\x93NUMPY" 1 0 | u16 n, little endian | n bytes, a
 * Python dict with descr, fortran_order and shape, padded with blanks to a
 * multiple of 64 in all and ended by a line feed | the data, C order. */
#include "export/writer_internal.h"

#include "artifact/tables.h"
#include "format/npy.h"

/* Writes <name>.npy; line is scratch for its name and header, used again for the next array. */
static exf_code write_array(exf_output_directory *f, const exf_tensor *t, exf_text *line, exf_err *err)
{
    exf_code rc;
    line->len = 0;
    exf_text_appendf(line, "%s.npy", t->name);
    EXF_TRY(exf_text_end(line, err));
    EXF_TRY(exf_output_directory_file(f, line->s, err));
    line->len = 0;
    EXF_TRY(exf_npy_header(line, t, t->name, err));
    EXF_TRY(exf_output_directory_write(f, line->s, line->len, err));
    EXF_TRY(exf_output_directory_write(f, t->data, exf_tensor_bytes(t), err));
out:
    return rc;
}

static exf_code write_npy(const exf_export *x, const char *path, int force, exf_err *err)
{
    const exf_tables *t = x->tables;
    exf_tensor layers = {.name = "layer_numbers", .dtype = EXF_DT_I32, .rank = 1, .shape = {t->n_layers}, .data = t->layer_number};
    exf_table_list list = {0};
    exf_text line = {0};
    exf_output_directory *f = NULL;
    exf_code rc;
    EXF_TRY(exf_table_list_make(&list, t, 0, err));
    EXF_TRY(exf_output_directory_begin(&f, path, force, err));
    EXF_TRY(write_array(f, &layers, &line, err));
    for (size_t i = 0; i < list.n; i++) EXF_TRY(write_array(f, &list.tensor[i], &line, err));
    EXF_TRY(exf_table_facts_file(f, x, err));
    rc = exf_output_directory_commit(f, err);
    f = NULL;
out:
    exf_output_directory_abort(f);
    exf_table_list_free(&list);
    exf_text_free(&line);
    return rc;
}

const exf_writer exf_writer_npy = {
    .name = "npy",
    .file = "npy",
    .is_directory = 1,
    .wants_vectors = 1,
    .about = "a folder with one NumPy file per table",
    .load = {"npy", "NumPy",
             "import numpy\n"
             "\n"
             "coeff = numpy.load(\"npy/coeff.npy\", mmap_mode=\"r\")\n"
             "loss = numpy.load(\"npy/loss.npy\", mmap_mode=\"r\")\n"
             "target = loss[0, 3].argmin()\n"
             "print(f\"first layer: expert 3 is about {coeff[0, 3, target]:.4f} times expert {target}\")\n"},
    .covers = exf_writer_covers_own,
    .write = write_npy,
};
