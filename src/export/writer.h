/* writer.h - tables for others to load.
 *
 * A registry: one file src/export/writer_<target>.c per target format.  A target is
 * one file or one directory in the output directory, all of it or nothing. */
#ifndef EXF_EXPORT_WRITER_H
#define EXF_EXPORT_WRITER_H
#include "artifact/tables.h"
#include "base/text.h"
#include "model/model.h"

/* The tables to export, and the facts of a model card that are not in them; all borrowed. */
typedef struct {
    const exf_tables *tables;
    const char *digest;         /* of the tables; NULL: not known */
    char *sha256;               /* [EXF_SHA256_HEX] gets that of the file, where its writer hashes it; NULL: nobody asks */
    const char *validation;     /* validation.md of these tables, for a card; NULL: none */
    const exf_provenance *validated; /* the facts of that validation, its text and settings; NULL: not known */
    int has_recipe;             /* exfold_recipe.yaml stands beside what is exported */
    const struct exf_writer *const *targets; /* those that a card tells of: of this export, and what lies beside it */
    size_t n_targets;
    const char *base_model;     /* the model's name on a hub; NULL: not given */
    const char *revision;       /* of base_model; NULL: not given */
    const char *const *datasets; /* names on a hub */
    size_t n_datasets;
    const exf_model *model; /* the checkpoint that the tables are of; NULL unless a target wants_model */
    const char *other_weights; /* in which parts its weights differ from the tables'; NULL: they must not */
    int64_t keep;           /* experts that a pruned model keeps in each layer; 0: not given */
    int64_t ranks;          /* of expert parallelism, each with equally many of them; 0 is 1 */
    int bare_router;        /* 1: over the routes of REAP's code */
    exf_pool_criterion by;  /* what the experts that it keeps have most of; not energy */
} exf_export;

/* The facts of a model that a writer checks before calibration. */
typedef struct {
    const char *family;
    int64_t n_layers; /* all of the model's */
    int64_t n_experts, top_k;
} exf_export_model;

/* The settings of an export and the model that they are for. */
typedef struct {
    int64_t n_experts, top_k;
    int64_t keep, ranks;          /* as in exf_export */
    const exf_architecture *arch; /* of a target that wants_model; NULL: not known */
} exf_export_settings;

/* Lines of Python that load what a writer wrote. */
typedef struct {
    const char *name;   /* tests/interop/load_<name>.py */
    const char *title;
    const char *code;
} exf_snippet;

typedef struct exf_writer {
    const char *name; /* as in the recipe's output.targets */
    const char *file; /* name of the file or directory it writes */
    int is_directory;
    int wants_vectors; /* writes tables->vectors, which must have been read */
    int wants_model;   /* reads export.model */
    int of_plugin;     /* is read by a public runtime's plugin alone, and folded as it is */
    const char *about;
    exf_snippet load; /* zero: the file holds no tables to load */
    /* EXF_MODEL if the file's readers cannot serve the model; NULL: they serve any. */
    exf_code (*serves)(const exf_export_model *m, exf_err *err);
    /* EXF_THRESHOLD if they refuse the numbers; NULL: they take all that is well-formed. */
    exf_code (*accepts)(const exf_tables *t, exf_err *err);
    /* Refuses what the settings of the export lack, or what contradicts the model; NULL: it asks for none. */
    exf_code (*asks)(const exf_export_settings *s, exf_err *err);
    /* Refuses tables that lack what it writes of them; NULL: it writes what all have. */
    exf_code (*allows)(const exf_export *x, exf_err *err);
    /* Bytes that it will write, where they may be many; NULL: a few times the tables. */
    exf_code (*bytes)(const exf_export *x, uint64_t *bytes, exf_err *err);
    /* EXF_THRESHOLD if they fold layers of which the tables have no pair; by_token: they fold layers that route by token id
     * too.  NULL: they fold nothing. */
    exf_code (*covers)(const exf_tables *t, int by_token, exf_err *err);
    /* Sets *is to whether a file could have been written of these tables, which has no place for their digest; NULL: it has. */
    exf_code (*is_of)(const exf_tables *t, const char *path, int *is, exf_err *err);
    /* Writes the file or directory at path, of what exf_writer_check_export() accepted. */
    exf_code (*write)(const exf_export *x, const char *path, int force, exf_err *err);
} exf_writer;

const exf_writer *exf_writer_find(const char *name); /* NULL: unknown */
const exf_writer *exf_writer_at(size_t i);           /* in order of name; NULL: past the end */
/* Finds the target; EXF_USAGE names the unknown one and the known ones. */
exf_code exf_writer_require(const char *name, const exf_writer **out, exf_err *err) EXF_CHECKED;

/* Checks before any work: refuse a model, and settings. */
exf_code exf_writer_check_model(const exf_writer *w, const exf_export_model *m, exf_err *err) EXF_CHECKED;
exf_code exf_writer_check_settings(const exf_writer *w, const exf_export_settings *s, exf_err *err) EXF_CHECKED;
/* Refuses tables that are of a model that the target cannot serve, or whose numbers its readers refuse; t keeps the rules of
 * tables.h, as exf_tables_read() and exf_tables_check() see to. */
exf_code exf_writer_check_tables(const exf_writer *w, const exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;
/* Checks likewise, and the settings of the export. */
exf_code exf_writer_check_export(const exf_writer *w, const exf_export *x, const char *path, exf_err *err) EXF_CHECKED;
#endif
