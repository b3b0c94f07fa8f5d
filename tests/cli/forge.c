/* forge.c - changes one number of an HDF5 file of ours and makes its checksum fit, so that a test can show what the readers
 * refuse besides damage.
 * usage: forge FILE.h5 /DATASET INDEX VALUE     an element, counted through all axes
 *        forge FILE.h5 ATTRIBUTE VALUE          an integer attribute of the root
 *        forge FILE.h5 /GROUP FROM.h5           the group of that name of another file in its place */
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

/* Writes "ROWS CRC CRC ..." again (artifact.h). */
static void checksum_again(hid_t d, hid_t space, const char *bytes, size_t n)
{
    hsize_t rows[H5S_MAX_RANK] = {1};
    if (H5Aexists(d, "crc32") <= 0) return; /* version 1 or 2 */
    hid_t attr = H5Aopen(d, "crc32", H5P_DEFAULT), type = H5Aget_type(attr);
    char *text = calloc(H5Tget_size(type) + 2, 1);
    must(text && H5Aread(attr, type, text) >= 0, "cannot read the checksums");
    H5Sget_simple_extent_dims(space, rows, NULL);
    size_t block = strtoul(text, NULL, 10) * (n / rows[0]);
    char *to = strchr(text, ' ');
    for (size_t from = 0; from < n; from += block, to += 9)
        snprintf(to, 10, " %08lx", crc32(0, (const unsigned char *)bytes + from, (uInt)(n - from < block ? n - from : block)));
    must(H5Awrite(attr, type, text) >= 0, "cannot write the checksums");
    free(text);
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
    checksum_again(d, space, all, n * width);
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

int main(int argc, char **argv)
{
    must(argc == 4 || argc == 5, "usage: forge FILE.h5 /DATASET INDEX VALUE | ATTRIBUTE VALUE | /GROUP FROM.h5");
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
