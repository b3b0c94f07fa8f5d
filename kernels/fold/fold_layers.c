/* fold_layers.c - the tables of a model's layers: a .safetensors file in memory, its arrays by name, one layer's pointers.
 *
 * The file is 8 bytes of length, a JSON object {"name": {"dtype", "shape", "data_offsets"}, "__metadata__": {"key": "text"}}
 * and the data.  The library needs nothing but C, so the object is read here: exactly what the format allows, in one pass; no
 * text is copied, names are compared as they are spelled. */
#include "kernels/fold/fold_arguments.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_DIMS = 8, MOST_LAYERS = 65536 };
#define MOST_HEADER ((uint64_t)100000000) /* bytes, as in the reference reader of the format */

/* A text of the header, between its quotes. */
typedef struct {
    const char *at;
    size_t n;
} text;

typedef struct {
    text name;
    exf_fold_array array;
} entry;

/* What a struct of layers holds on to. */
typedef struct {
    void *mapped; /* NULL: the bytes are the caller's */
    size_t n_mapped;
    entry *entries; /* [n] by name */
    size_t n, room;
    int32_t *numbers;
} table_file;

/* Where the reader stands; why [why_bytes] is written once, at the first failure. */
typedef struct {
    const char *at, *end;
    char *why;
    size_t why_bytes;
    int failed;
} reader;

__attribute__((format(printf, 2, 3))) static int fail(reader *r, const char *format, ...)
{
    va_list arguments;
    if (r->failed) return 0;
    r->failed = 1;
    if (!r->why || !r->why_bytes) return 0;
    va_start(arguments, format);
    vsnprintf(r->why, r->why_bytes, format, arguments);
    va_end(arguments);
    for (char *c = r->why; *c; c++) /* a file's names speak to no terminal */
        if (*c < 0x20 || *c > 0x7e) *c = '?';
    return 0;
}

/* ---- the header's JSON ---------------------------------------------------------------------- */

static void skip_space(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r')) r->at++;
}

/* Returns 1 and goes past c if it is next, after blanks. */
static int take(reader *r, char c)
{
    skip_space(r);
    if (r->at == r->end || *r->at != c) return 0;
    r->at++;
    return 1;
}

static int want(reader *r, char c)
{
    return take(r, c) || fail(r, "the header has no '%c' where one belongs", c);
}

static int read_text(reader *r, text *t)
{
    if (!want(r, '"')) return 0;
    t->at = r->at;
    while (r->at < r->end && *r->at != '"') {
        if ((unsigned char)*r->at < 0x20) return fail(r, "a text of the header has a control character");
        int escaped = *r->at == '\\' && r->end - r->at > 1; /* a quote after it ends nothing */
        r->at += 1 + escaped;
    }
    if (r->at == r->end) return fail(r, "a text of the header has no end");
    t->n = (size_t)(r->at++ - t->at);
    return 1;
}

/* Reads a whole number from 0 to INT64_MAX. */
static int read_whole(reader *r, int64_t *v)
{
    skip_space(r);
    const char *from = r->at;
    for (*v = 0; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++) {
        int digit = *r->at - '0';
        if (*v > (INT64_MAX - digit) / 10) return fail(r, "a number of the header is above 2^63 - 1");
        *v = *v * 10 + digit;
    }
    if (r->at == from || (*from == '0' && r->at - from > 1)) return fail(r, "the header has no whole number where one belongs");
    return 1;
}

/* Reads at most `most` numbers between brackets; *n: how many there are. */
static int read_wholes(reader *r, int64_t *v, int most, int *n)
{
    *n = 0;
    if (!want(r, '[')) return 0;
    if (take(r, ']')) return 1;
    do {
        if (*n == most) return fail(r, "a list of the header has more than %d numbers", most);
        if (!read_whole(r, &v[(*n)++])) return 0;
    } while (take(r, ','));
    return want(r, ']');
}

static int is(text t, const char *word)
{
    return t.n == strlen(word) && !memcmp(t.at, word, t.n);
}

/* Returns how much of a name a message shows. */
static int shown(text t)
{
    return t.n < 80 ? (int)t.n : 80;
}

/* ---- one array ------------------------------------------------------------------------------ */

/* Returns the bytes that an array's type and shape say, of a type that this reader does not know those that it has; -1: more than
 * 2^63 - 1. */
static int64_t bytes_of(const exf_fold_array *a)
{
    static const struct {
        const char *type;
        int bytes;
    } known[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"U16", 2}, {"I16", 2}, {"F16", 2}, {"BF16", 2},
                 {"U32", 4},  {"I32", 4}, {"F32", 4}, {"U64", 8}, {"I64", 8}, {"F64", 8}};
    int64_t n = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].type, a->type)) n = known[i].bytes;
    if (n == 0) return (int64_t)a->bytes;
    for (int i = 0; i < a->n_dims; i++)
        if (a->shape[i] == 0) return 0;
    for (int i = 0; i < a->n_dims; i++) {
        if (n > INT64_MAX / a->shape[i]) return -1;
        n *= a->shape[i];
    }
    return n;
}

/* Reads {"dtype", "shape", "data_offsets"}, each once, in any order; the data are n_data bytes. */
static int read_entry(reader *r, entry *e, const char *data, int64_t n_data)
{
    int64_t range[2] = {0, 0};
    int seen = 0, n;
    text key, type;
    if (!want(r, '{')) return 0;
    do {
        if (!read_text(r, &key) || !want(r, ':')) return 0;
        int bit = is(key, "dtype") ? 1 : is(key, "shape") ? 2 : is(key, "data_offsets") ? 4 : 8;
        if (bit == 8 || seen & bit)
            return fail(r, "array \"%.*s\" has the key \"%.*s\" twice or beyond the format", shown(e->name), e->name.at, shown(key),
                        key.at);
        seen |= bit;
        if (bit == 1) {
            if (!read_text(r, &type)) return 0;
            if (type.n >= sizeof e->array.type)
                return fail(r, "array \"%.*s\" has a dtype of %zu letters", shown(e->name), e->name.at, type.n);
            memcpy(e->array.type, type.at, type.n);
        }
        if (bit == 2 && !read_wholes(r, e->array.shape, MOST_DIMS, &e->array.n_dims)) return 0;
        if (bit == 4 && (!read_wholes(r, range, 2, &n) || n != 2)) return fail(r, "data_offsets are not two numbers");
    } while (take(r, ','));
    if (!want(r, '}')) return 0;
    if (seen != 7) return fail(r, "array \"%.*s\" lacks dtype, shape or data_offsets", shown(e->name), e->name.at);
    if (range[0] > range[1] || range[1] > n_data)
        return fail(r, "array \"%.*s\" has the bytes %lld to %lld of %lld", shown(e->name), e->name.at, (long long)range[0],
                    (long long)range[1], (long long)n_data);
    e->array.data = data + range[0];
    e->array.bytes = (size_t)(range[1] - range[0]);
    if (bytes_of(&e->array) != range[1] - range[0])
        return fail(r, "array \"%.*s\" has %lld bytes, which are not those of its dtype and shape", shown(e->name), e->name.at,
                    (long long)(range[1] - range[0]));
    return 1;
}

/* Reads the metadata; *numbers: the text of layer_numbers. */
static int read_metadata(reader *r, text *numbers)
{
    text key, value;
    if (!want(r, '{')) return 0;
    if (take(r, '}')) return 1;
    do {
        if (!read_text(r, &key) || !want(r, ':') || !read_text(r, &value)) return 0;
        if (is(key, "layer_numbers")) *numbers = value;
    } while (take(r, ','));
    return want(r, '}');
}

static int by_name(const void *a, const void *b)
{
    text x = ((const entry *)a)->name, y = ((const entry *)b)->name;
    int order = memcmp(x.at, y.at, x.n < y.n ? x.n : y.n);
    return order ? order : (x.n > y.n) - (x.n < y.n);
}

static int read_header(reader *r, table_file *f, text *numbers, const char *data, int64_t n_data)
{
    if (!want(r, '{')) return 0;
    int any = !take(r, '}'), metadata = 0;
    while (any) {
        entry e = {.array = {.data = NULL}};
        if (!read_text(r, &e.name) || !want(r, ':')) return 0;
        if (is(e.name, "__metadata__")) {
            if (metadata++) return fail(r, "__metadata__ is there twice");
            if (!read_metadata(r, numbers)) return 0;
        } else {
            if (!read_entry(r, &e, data, n_data)) return 0;
            if (f->n == f->room) {
                f->room = f->room ? 2 * f->room : 64;
                entry *more = realloc(f->entries, f->room * sizeof *more);
                if (!more) return fail(r, "there is no memory for %zu arrays", f->room);
                f->entries = more;
            }
            f->entries[f->n++] = e;
        }
        any = take(r, ',');
        if (!any && !want(r, '}')) return 0;
    }
    skip_space(r);
    if (r->at != r->end) return fail(r, "the header goes on after its object");
    if (f->n) qsort(f->entries, f->n, sizeof *f->entries, by_name);
    for (size_t i = 1; i < f->n; i++)
        if (!by_name(&f->entries[i - 1], &f->entries[i]))
            return fail(r, "array \"%.*s\" is there twice", shown(f->entries[i].name), f->entries[i].name.at);
    return 1;
}

/* ---- tables ----------------------------------------------------------------------------------- */

static const exf_fold_array *find(const table_file *f, const char *name)
{
    entry wanted = {.name = {name, strlen(name)}};
    const entry *e = f->n ? bsearch(&wanted, f->entries, f->n, sizeof *f->entries, by_name) : NULL;
    return e ? &e->array : NULL;
}

/* Finds a table of float32 numbers that are all finite: [L, E, E], or [L, E] if `vector`; *table stays where an optional one is
 * not there. */
static int find_table(reader *r, const float **table, const table_file *f, const exf_fold_layers *l, const char *name, int vector,
                      int optional)
{
    const exf_fold_array *a = find(f, name);
    if (!a) return optional || fail(r, "there is no array \"%s\"", name);
    if (strcmp(a->type, "F32") != 0 || a->n_dims != 3 - vector || a->shape[0] != l->n_layers || a->shape[1] != l->n_experts ||
        (!vector && a->shape[2] != l->n_experts))
        return fail(r, "array \"%s\" is not F32 [%d, %d%s]", name, l->n_layers, l->n_experts, vector ? "" : ", the same");
    if ((uintptr_t)a->data % sizeof(float)) return fail(r, "array \"%s\" lies at an address that 4 does not divide", name);
    const float *v = a->data;
    for (size_t i = 0; i < a->bytes / sizeof *v; i++)
        if (!(fabsf(v[i]) <= 3.402823466e38f)) return fail(r, "array \"%s\": number %zu is not finite", name, i);
    *table = v;
    return 1;
}

/* Reads the numbers of the layers, "[0, 1, 2]", each once. */
static int read_numbers(reader *r, table_file *f, const exf_fold_layers *l, text numbers)
{
    reader list = {.at = numbers.at, .end = numbers.at + numbers.n};
    int64_t *v = malloc((size_t)l->n_layers * sizeof *v);
    int n = 0;
    f->numbers = malloc((size_t)l->n_layers * sizeof *f->numbers);
    int good = (v && f->numbers) || fail(r, "there is no memory for %d layers", l->n_layers);
    if (good && (!read_wholes(&list, v, l->n_layers, &n) || n != l->n_layers || list.at != list.end))
        good = fail(r, "layer_numbers is not a list of the %d numbers of the layers", l->n_layers);
    for (int i = 0; good && i < n; i++) {
        if (v[i] > INT32_MAX || (i && v[i] <= v[i - 1])) good = fail(r, "layer_numbers do not rise");
        f->numbers[i] = (int32_t)v[i];
    }
    free(v);
    return good;
}

static int read_tables(reader *r, exf_fold_layers *l, table_file *f, text numbers)
{
    const exf_fold_array *coeff = find(f, "coeff");
    if (!coeff || coeff->n_dims != 3) return fail(r, "there is no array \"coeff\" [L, E, E]");
    int64_t layers = coeff->shape[0], experts = coeff->shape[1];
    if (layers < 1 || layers > MOST_LAYERS || experts < EXF_FOLD_MIN_E || experts > EXF_FOLD_MAX_E)
        return fail(r, "array \"coeff\" has %lld layers of %lld experts; 1 to %d of %d to %d are folded", (long long)layers,
                    (long long)experts, MOST_LAYERS, EXF_FOLD_MIN_E, EXF_FOLD_MAX_E);
    l->n_layers = (int)layers;
    l->n_experts = (int)experts;
    int good = find_table(r, &l->coeff, f, l, "coeff", 0, 0) && find_table(r, &l->loss, f, l, "loss", 0, 0) &&
               find_table(r, &l->norms, f, l, "expert_norms", 1, 1) && find_table(r, &l->cosine, f, l, "cosine", 0, 1) &&
               find_table(r, &l->rms, f, l, "rms", 1, 1) &&
               find_table(r, &l->relative_norms, f, l, "relative_norms", 1, 1) && (!numbers.at || read_numbers(r, f, l, numbers));
    l->numbers = f->numbers;
    return good;
}

static int read_bytes(reader *r, exf_fold_layers *l, table_file *f, const unsigned char *bytes, size_t n)
{
    uint64_t length = 0;
    text numbers = {NULL, 0};
    if (n >= 4 && !memcmp(bytes, "\x89HDF", 4))
        return fail(r, "this is HDF5; exfold-export --set output.targets=safetensors writes what is read here");
    if (n < 8) return fail(r, "%zu bytes are no .safetensors file", n);
    for (int i = 7; i >= 0; i--) length = length << 8 | bytes[i];
    if (length > MOST_HEADER || length > n - 8)
        return fail(r, "the header has %llu bytes, the file %zu", (unsigned long long)length, n);
    r->at = (const char *)bytes + 8;
    r->end = r->at + length;
    return read_header(r, f, &numbers, r->end, (int64_t)(n - 8 - length)) && read_tables(r, l, f, numbers);
}

/* ---- opening and closing ------------------------------------------------------------------------ */

/* Copies a caller's struct of any size to ours. */
static exf_fold_status read_layers(exf_fold_layers *ours, const exf_fold_layers *l)
{
    int sized, first;
    if (!l) return EXF_FOLD_BAD_ARGUMENT;
    exf_fold_status status = exf_fold_read_options(ours, sizeof *ours, l, &sized, &first);
    if (status != EXF_FOLD_OK) return status;
    if (!sized || (l->size & ~EXF_FOLD_SIZE_BIT) < sizeof *l) return EXF_FOLD_BAD_ARGUMENT;
    int unknown = ours->reserved_int != 0;
    for (size_t i = 0; i < sizeof ours->reserved / sizeof *ours->reserved; i++) unknown |= ours->reserved[i] != NULL;
    return unknown ? EXF_FOLD_UNSUPPORTED : EXF_FOLD_OK;
}

/* Checks that a struct is EXF_FOLD_LAYERS_INIT, with no file open. */
static exf_fold_status check_empty(const exf_fold_layers *l)
{
    exf_fold_layers ours;
    exf_fold_status status = read_layers(&ours, l);
    return status == EXF_FOLD_OK && ours.file ? EXF_FOLD_BAD_ARGUMENT : status;
}

/* Reads the bytes, which `mapped` says to unmap afterwards.  *l keeps the caller's size of it, beyond which nothing is written. */
static exf_fold_status open_bytes(exf_fold_layers *l, const void *bytes, size_t n, void *mapped, reader *r)
{
    table_file *f = calloc(1, sizeof *f);
    *l = (exf_fold_layers){.size = l->size};
    if (!f) {
        if (mapped) munmap(mapped, n);
        fail(r, "there is no memory");
        return EXF_FOLD_FILE;
    }
    f->mapped = mapped;
    f->n_mapped = n;
    l->file = f;
    if (read_bytes(r, l, f, bytes, n)) return EXF_FOLD_OK;
    exf_fold_layers_free(l);
    return EXF_FOLD_FILE;
}

exf_fold_status exf_fold_layers_read(exf_fold_layers *l, const void *bytes, size_t n_bytes, char *why, size_t why_bytes)
{
    reader r = {.why = why, .why_bytes = why_bytes};
    exf_fold_status status = check_empty(l);
    if (status != EXF_FOLD_OK) return status;
    if (!bytes || (uintptr_t)bytes % 8) return EXF_FOLD_BAD_ARGUMENT;
    return open_bytes(l, bytes, n_bytes, NULL, &r);
}

exf_fold_status exf_fold_layers_load(exf_fold_layers *l, const char *path, char *why, size_t why_bytes)
{
    reader r = {.why = why, .why_bytes = why_bytes};
    exf_fold_status status = check_empty(l);
    if (status != EXF_FOLD_OK) return status;
    if (!path) return EXF_FOLD_BAD_ARGUMENT;
    int start = why && why_bytes ? snprintf(why, why_bytes, "%s: ", path) : 0; /* the reason follows the path */
    if (start > 0) {
        size_t used = (size_t)start < why_bytes ? (size_t)start : why_bytes - 1;
        r.why += used;
        r.why_bytes -= used;
    }
    *l = (exf_fold_layers){.size = l->size};
    status = EXF_FOLD_FILE;
    struct stat s;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &s)) {
        fail(&r, "%s", strerror(errno));
    } else if (!S_ISREG(s.st_mode) || s.st_size < 8) {
        fail(&r, "this is no file of 8 bytes or more");
    } else {
        void *bytes = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, file, 0);
        if (bytes == MAP_FAILED)
            fail(&r, "it cannot be mapped: %s", strerror(errno));
        else
            status = open_bytes(l, bytes, (size_t)s.st_size, bytes, &r);
    }
    if (file >= 0) close(file);
    if (status == EXF_FOLD_OK && why && why_bytes) why[0] = '\0';
    return status;
}

void exf_fold_layers_free(exf_fold_layers *l)
{
    if (!l) return;
    table_file *f = l->file;
    if (f) {
        if (f->mapped) munmap(f->mapped, f->n_mapped);
        free(f->entries);
        free(f->numbers);
        free(f);
    }
    *l = (exf_fold_layers){.size = l->size};
}

/* ---- one layer ---------------------------------------------------------------------------------- */

int exf_fold_layers_index(const exf_fold_layers *l, int number)
{
    exf_fold_layers ours;
    if (read_layers(&ours, l) != EXF_FOLD_OK) return -1;
    if (!l->numbers) return number >= 0 && number < l->n_layers ? number : -1;
    for (int i = 0; i < l->n_layers; i++)
        if (l->numbers[i] == number) return i;
    return -1;
}

exf_fold_status exf_fold_layers_at(const exf_fold_layers *l, int number, exf_fold_tables *t)
{
    exf_fold_layers ours;
    exf_fold_status status = read_layers(&ours, l);
    if (status != EXF_FOLD_OK) return status;
    int index = exf_fold_layers_index(l, number);
    if (index < 0 || !t || l->n_experts < 1) return EXF_FOLD_BAD_ARGUMENT;
    size_t e = (size_t)l->n_experts, vector = (size_t)index * e, matrix = vector * e;
    *t = (exf_fold_tables){.coeff = l->coeff ? l->coeff + matrix : NULL,
                           .loss = l->loss ? l->loss + matrix : NULL,
                           .norms = l->norms ? l->norms + vector : NULL,
                           .cosine = l->cosine ? l->cosine + matrix : NULL,
                           .rms = l->rms ? l->rms + vector : NULL,
                           .relative_norms = l->relative_norms ? l->relative_norms + vector : NULL,
                           .n_experts = l->n_experts};
    return EXF_FOLD_OK;
}

exf_fold_status exf_fold_layers_find(const exf_fold_layers *l, const char *name, exf_fold_array *a)
{
    exf_fold_layers ours;
    exf_fold_status status = read_layers(&ours, l);
    if (status != EXF_FOLD_OK) return status;
    const exf_fold_array *found = name && a && l->file ? find(l->file, name) : NULL;
    if (!found) return EXF_FOLD_BAD_ARGUMENT;
    *a = *found;
    return EXF_FOLD_OK;
}
