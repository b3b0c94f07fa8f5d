/* announce.c - see announce.h. */
#include "recipe/announce.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/output_directory.h"
#include "base/printable.h"
#include "base/text.h"
#include "format/h5.h"

#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

static exf_code say(const char *path, const char *word, const char *hex, exf_err *err)
{
    char size[16];
    exf_file *f = NULL;
    exf_code rc = exf_file_open(&f, path, err);
    if (rc != EXF_OK) return rc;
    printf("wrote ");
    exf_print_text(path, 0);
    printf("  %s  %s %s\n", exf_human_bytes(size, sizeof size, (double)exf_file_size(f)), word, hex);
    exf_file_close(f);
    return EXF_OK;
}

static exf_code announce_file(const char *path, exf_err *err)
{
    char hex[EXF_SHA256_HEX];
    exf_h5 *h = NULL;
    exf_code rc;
    if (exf_ends_with(path, ".h5")) {
        EXF_TRY(exf_h5_open(&h, path, err));
        EXF_TRY(exf_h5_digest(h, hex, err));
        rc = say(path, "digest", hex, err);
    } else {
        EXF_TRY(exf_hash_file(path, hex, err));
        rc = say(path, "sha256", hex, err);
    }
out:
    exf_h5_close(h);
    return rc;
}

exf_code exf_announce_digest(const char *path, const char *digest, exf_err *err)
{
    return say(path, "digest", digest, err);
}

static exf_code announce_in(void *self, const char *name, exf_err *err)
{
    char *path = NULL;
    exf_code rc = exf_path_join(&path, self, name, err);
    if (rc == EXF_OK) rc = announce_file(path, err);
    exf_mem_free(path);
    return rc;
}

exf_code exf_announce(const char *path, exf_err *err)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return announce_file(path, err);
    return exf_each_file(path, announce_in, (void *)(uintptr_t)path, err);
}

/* ---- terminal ---------------------------------------------------------------------------------- */

void exf_print_text(const char *text, int width)
{
    while (*text) {
        size_t n = exf_printable_bytes(text);
        if (n) fwrite(text, 1, n, stdout);
        else putchar('?');
        width -= n ? (int)n : 1;
        text += n ? n : 1;
    }
    if (width > 0) printf("%*s", width, "");
}
