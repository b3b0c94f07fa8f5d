/* forge.c - changes one number of an HDF5 file of ours and makes its checksum fit, so that a test can show what the readers
 * refuse besides damage; or a column of a checkpoint's tensor.
 * usage: forge FILE.h5 /DATASET INDEX VALUE     an element, counted through all axes
 *        forge FILE.h5 ATTRIBUTE VALUE          an integer attribute of the root
 *        forge FILE.h5 /GROUP FROM.h5           the group of that name of another file in its place
 *        forge FILE.safetensors TENSOR WIDTH FROM TO   of each row of WIDTH 64-bit integers, element TO becomes element FROM
 *        forge stack FROM.safetensors TO.safetensors   the experts of each layer in two tensors, as transformers 5 saves them */
#include <hdf5.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static void must(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "forge: %s\n", what);
    exit(1);
}

/* Writes the number of that text in the dataset's type. */
static void parse(char *to, hid_t type, const char *text)
{
    size_t width = H5Tget_size(type);
    if (H5Tget_class(type) == H5T_FLOAT) {
        double wide = strtod(text, NULL);
        float narrow = (float)wide;
        memcpy(to, width == sizeof narrow ? (void *)&narrow : (void *)&wide, width);
        return;
    }
    uint64_t n = *text == '-' ? (uint64_t)strtoll(text, NULL, 10) : strtoull(text, NULL, 10);
    memcpy(to, &n, width); /* little endian, as the file's types are */
}

/* Writes the CRC-32 of the elements again (format/h5.h). */
static void checksum_again(hid_t d, const char *bytes, size_t n)
{
    char text[9];
    hid_t attr = H5Aopen(d, "crc32", H5P_DEFAULT), type = H5Aget_type(attr);
    snprintf(text, sizeof text, "%08lx", crc32(0, (const unsigned char *)bytes, (uInt)n));
    must(H5Awrite(attr, type, text) >= 0, "cannot write the checksum");
    H5Tclose(type);
    H5Aclose(attr);
}

static void set_element(hid_t file, const char *dataset, size_t at, const char *value)
{
    hid_t d = H5Dopen2(file, dataset, H5P_DEFAULT);
    must(d >= 0, "no such dataset");
    hid_t type = H5Dget_type(d), space = H5Dget_space(d);
    size_t width = H5Tget_size(type), n = (size_t)H5Sget_simple_extent_npoints(space);
    char *all = calloc(n, width);
    must(all && at < n && H5Dread(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, all) >= 0, "cannot read that element");
    parse(all + at * width, type, value);
    must(H5Dwrite(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, all) >= 0, "cannot write the dataset");
    checksum_again(d, all, n * width);
    free(all);
    H5Sclose(space);
    H5Tclose(type);
    H5Dclose(d);
}

static void set_attribute(hid_t file, const char *name, const char *value)
{
    int64_t n = strtoll(value, NULL, 10);
    hid_t attr = H5Aopen(file, name, H5P_DEFAULT);
    must(attr >= 0 && H5Awrite(attr, H5T_NATIVE_INT64, &n) >= 0, "cannot write that attribute");
    H5Aclose(attr);
}

static void take_group(hid_t file, const char *group, const char *from)
{
    hid_t other = H5Fopen(from, H5F_ACC_RDONLY, H5P_DEFAULT);
    must(other >= 0, "cannot open the other file");
    must(H5Ldelete(file, group, H5P_DEFAULT) >= 0, "no such group");
    must(H5Ocopy(other, group, file, group, H5P_DEFAULT, H5P_DEFAULT) >= 0, "the other file has no such group");
    H5Fclose(other);
}

static void copy_column(const char *path, const char *tensor, size_t width, size_t from, size_t to)
{
    FILE *f = fopen(path, "r+b");
    uint64_t header = 0;
    unsigned long begin, end;
    char name[256];
    must(f && fread(&header, 8, 1, f) == 1 && header < 1 << 24, "cannot open the file");
    char *text = calloc(header + 1, 1);
    must(text && fread(text, 1, header, f) == header, "cannot read the header");
    snprintf(name, sizeof name, "\"%s\"", tensor);
    const char *entry = strstr(text, name), *offsets = entry ? strstr(entry, "data_offsets") : NULL;
    must(offsets && sscanf(offsets, "data_offsets\":[%lu,%lu", &begin, &end) == 2, "no such tensor");
    size_t n = (end - begin) / 8;
    int64_t *all = calloc(n + 1, 8);
    must(all && to < width && from < width && n % width == 0, "no such columns");
    must(fseek(f, (long)(8 + header + begin), SEEK_SET) == 0 && fread(all, 8, n, f) == n, "cannot read the tensor");
    for (size_t i = 0; i < n; i += width) all[i + to] = all[i + from];
    must(fseek(f, (long)(8 + header + begin), SEEK_SET) == 0 && fwrite(all, 8, n, f) == n, "cannot write the tensor");
    must(fclose(f) == 0, "cannot close the file");
    free(all);
    free(text);
}

/* ---- experts in two tensors ---------------------------------------------------------------------------- */

typedef struct {
    char name[200], dtype[8];
    unsigned long shape[2], begin, end;
    int rank;
} tensor;

typedef struct {
    FILE *from, *to;
    uint64_t header; /* bytes before the tensors' data */
    tensor all[4096];
    size_t n;
    char *text;      /* the new header */
    unsigned long at; /* bytes of data that it has */
} copy;

static void read_header(copy *c)
{
    uint64_t n = 0;
    must(c->from && fread(&n, 8, 1, c->from) == 1 && n < 1 << 24, "cannot open the file");
    char *text = calloc(n + 1, 1), *entry = text;
    must(text && fread(text, 1, n, c->from) == n, "cannot read the header");
    while ((entry = strstr(entry, "\":{\"dtype\":\""))) {
        tensor *t = &c->all[c->n++];
        char *name = entry;
        must(c->n < 4096, "too many tensors");
        while (name[-1] != '"') name--;
        snprintf(t->name, sizeof t->name, "%.*s", (int)(entry - name), name);
        entry += strlen("\":{\"dtype\":\"");
        must(sscanf(entry, "%7[A-Z0-9]\",\"shape\":[%lu", t->dtype, &t->shape[0]) == 2, "cannot read a shape");
        t->rank = 1 + (sscanf(entry, "%*[A-Z0-9]\",\"shape\":[%*u,%lu", &t->shape[1]) == 1);
        must(sscanf(strstr(entry, "data_offsets"), "data_offsets\":[%lu,%lu", &t->begin, &t->end) == 2, "cannot read offsets");
    }
    c->header = 8 + n;
    c->text = calloc(n + 1, 1);
    free(text);
}

/* Returns the matrix of that name of an expert, or NULL. */
static const tensor *find_matrix(const copy *c, int layer, int expert, const char *matrix)
{
    char name[200];
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", layer, expert, matrix);
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->all[i].name, name) == 0) return &c->all[i];
    return NULL;
}

static void announce(copy *c, const char *name, const char *dtype, const char *shape, unsigned long bytes)
{
    sprintf(c->text + strlen(c->text), "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%lu,%lu]}",
            *c->text ? "," : "{", name, dtype, shape, c->at, c->at + bytes);
    c->at += bytes;
}

static void copy_bytes(copy *c, const tensor *t)
{
    size_t n = t->end - t->begin;
    char *bytes = malloc(n + 1);
    must(bytes && fseek(c->from, (long)(c->header + t->begin), SEEK_SET) == 0 && fread(bytes, 1, n, c->from) == n, "cannot read");
    must(fwrite(bytes, 1, n, c->to) == n, "cannot write");
    free(bytes);
}

/* Announces the two tensors of a layer, or copies their bytes. */
static void stack_layer(copy *c, int layer, int bytes)
{
    char name[200], shape[80];
    int experts = 0;
    while (find_matrix(c, layer, experts, "up_proj")) experts++;
    for (int k = 0; k < 2 && experts; k++) {
        const tensor *t = find_matrix(c, layer, 0, k ? "down_proj" : "gate_proj");
        unsigned long parts = k ? 1 : 2;
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s", layer, k ? "down_proj" : "gate_up_proj");
        snprintf(shape, sizeof shape, "%d,%lu,%lu", experts, parts * t->shape[0], t->shape[1]);
        if (!bytes) announce(c, name, t->dtype, shape, (unsigned long)experts * parts * (t->end - t->begin));
        for (int e = 0; bytes && e < experts; e++) {
            copy_bytes(c, find_matrix(c, layer, e, k ? "down_proj" : "gate_proj"));
            if (!k) copy_bytes(c, find_matrix(c, layer, e, "up_proj"));
        }
    }
}

static void stack_experts(const char *from, const char *to)
{
    copy *c = calloc(1, sizeof *c);
    must(c != NULL, "no memory");
    c->from = fopen(from, "rb");
    c->to = fopen(to, "wb");
    read_header(c);
    must(c->to != NULL, "cannot create the file");
    for (int bytes = 0; bytes < 2; bytes++) {
        for (size_t i = 0; i < c->n; i++) {
            const tensor *t = &c->all[i];
            char shape[80];
            if (strstr(t->name, ".experts.")) continue;
            snprintf(shape, sizeof shape, t->rank == 2 ? "%lu,%lu" : "%lu", t->shape[0], t->shape[1]);
            if (bytes) copy_bytes(c, t);
            else announce(c, t->name, t->dtype, shape, t->end - t->begin);
        }
        for (int layer = 0; layer < 64; layer++) stack_layer(c, layer, bytes);
        uint64_t n = strlen(strcat(c->text, bytes ? "" : "}"));
        must(bytes || (fwrite(&n, 8, 1, c->to) == 1 && fwrite(c->text, 1, n, c->to) == n), "cannot write the header");
    }
    must(fclose(c->to) == 0, "cannot close the file");
    fclose(c->from);
    free(c->text);
    free(c);
}

int main(int argc, char **argv)
{
    if (argc == 6) {
        copy_column(argv[1], argv[2], strtoul(argv[3], NULL, 10), strtoul(argv[4], NULL, 10), strtoul(argv[5], NULL, 10));
        return 0;
    }
    if (argc == 4 && strcmp(argv[1], "stack") == 0) {
        stack_experts(argv[2], argv[3]);
        return 0;
    }
    must(argc == 4 || argc == 5, "usage: see the top of forge.c");
    hid_t file = H5Fopen(argv[1], H5F_ACC_RDWR, H5P_DEFAULT);
    must(file >= 0, "cannot open the file");
    if (argc == 5)
        set_element(file, argv[2], strtoul(argv[3], NULL, 10), argv[4]);
    else if (*argv[2] == '/')
        take_group(file, argv[2], argv[3]);
    else
        set_attribute(file, argv[2], argv[3]);
    must(H5Fclose(file) >= 0, "cannot close the file");
    return 0;
}
