/* recipe_texts_internal.h - the files of --text, which recipe_texts.c finds and reads and recipe_texts_report.c tells of. */
#ifndef EXF_RECIPE_RECIPE_TEXTS_INTERNAL_H
#define EXF_RECIPE_RECIPE_TEXTS_INTERNAL_H
#include "capture/corpus.h"
#include "recipe/recipe.h"

/* A text that was named, or found in a directory that was. */
typedef struct {
    char *path, *domain; /* domain "": the manifest's own name for it */
    size_t argument;     /* which of the user's */
    int found;
} exf_text_item;

/* Files that are passed over, of one kind. */
typedef struct {
    const char *is;    /* what they are */
    const char *script; /* which writes their rows as JSON lines; NULL: none does */
    char *name;        /* of the first */
    size_t argument;   /* the user's argument in whose directory they were found */
    size_t n;
    uint64_t bytes;
} exf_passed_kind;

/* What --text comes to. */
typedef struct {
    const exf_recipe *recipe;
    exf_text_inputs *out;
    exf_text_item *item;
    size_t n, cap, argument;
    size_t of_format[EXF_SOURCE_FORMATS], read; /* files that are read */
    uint64_t bytes[EXF_SOURCE_FORMATS];
    size_t with_field;   /* of which a member or tensor is read */
    exf_passed_kind *passed; /* in the order in which they were found */
    size_t n_kinds, kinds_cap, n_directories;
    size_t found_of_format[EXF_SOURCE_FORMATS]; /* files that are read in the present argument's directory, and their bytes */
    uint64_t found_bytes[EXF_SOURCE_FORMATS];
    char *top;           /* of the directory that is being listed: its name */
    const char *folder;  /* the folder of it that is being listed; NULL: itself */
} exf_texts;

/* Notes a file that is not read: what it is, the script that writes its rows as JSON lines (NULL: none), its size where it was
 * looked at. */
exf_code exf_texts_pass_over(exf_texts *t, const char *path, const char *is, const char *script, uint64_t bytes,
                             exf_err *err) EXF_CHECKED;
/* Appends "hidden: 2 (.git, ...), a Parquet table: 1 (12 MB, train.parquet)", of one argument or of all. */
#define EXF_ALL_ARGUMENTS SIZE_MAX
void exf_texts_append_passed(const exf_texts *t, size_t argument, exf_text *out);
/* Says in one line what several files are, and which are passed over. */
exf_code exf_texts_report(const exf_texts *t, exf_err *err) EXF_CHECKED;
/* Refuses the present argument, a directory, if most bytes of it would be passed over: what is left is hardly what its user
 * means. */
exf_code exf_texts_check_directory(const exf_texts *t, const char *path, exf_err *err) EXF_CHECKED;
#endif
