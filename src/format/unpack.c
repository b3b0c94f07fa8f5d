/* unpack.c - streams of zlib and libzstd over a file; see unpack.h. */
#include "format/unpack.h"

#include "base/mem.h"

#include <string.h>
#include <zlib.h>
#include <zstd.h>

enum { INPUT = 1 << 16, GZIP_ONLY = 15 + 16, WINDOW_LOG = 27 };

struct exf_unpacker {
    const exf_file *file;
    exf_packing kind;
    uint64_t at, given;     /* bytes that were read from the file, and that were unpacked */
    size_t begin, end;      /* of the input that is not unpacked yet */
    int between, one_ended; /* at the beginning of a member or frame; one was read to its end */
    z_stream gzip;
    ZSTD_DStream *zstd;
    unsigned char input[INPUT];
};

exf_packing exf_packing_of(const void *bytes, size_t n)
{
    if (n >= 3 && memcmp(bytes, "\x1f\x8b\x08", 3) == 0) return EXF_GZIP;
    if (n >= 4 && memcmp(bytes, "\x28\xb5\x2f\xfd", 4) == 0) return EXF_ZSTD;
    /* A frame that is passed over: pzstd writes one before each of its others. */
    if (n >= 4 && (*(const unsigned char *)bytes & 0xf0) == 0x50 && memcmp((const char *)bytes + 1, "\x2a\x4d\x18", 3) == 0)
        return EXF_ZSTD;
    return EXF_PLAIN;
}

const char *exf_packing_name(exf_packing p)
{
    return p == EXF_GZIP ? "gzip" : p == EXF_ZSTD ? "zstd" : "";
}

size_t exf_unpacked_name(const char *name)
{
    size_t n = strlen(name), ending = exf_ends_with(name, ".gz") ? 3 : exf_ends_with(name, ".zst") ? 4 : 0;
    return n > ending ? n - ending : n;
}

/* Reads more of the file into the empty input; leaves it empty at the end. */
static exf_code fill(exf_unpacker *u, exf_err *err)
{
    uint64_t left = exf_file_size(u->file) - u->at;
    size_t n = left < INPUT ? (size_t)left : INPUT;
    exf_code rc = exf_file_read(u->file, u->at, u->input, n, err);
    if (rc != EXF_OK) return rc;
    u->at += n;
    u->begin = 0;
    u->end = n;
    return EXF_OK;
}

exf_code exf_unpack_open(exf_unpacker **out, const exf_file *f, exf_err *err)
{
    exf_unpacker *u = NULL;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_new(&u, 1, sizeof *u, "reader of a text", err));
    u->file = f;
    u->between = 1;
    EXF_TRY(fill(u, err));
    exf_packing kind = exf_packing_of(u->input, u->end);
    if (kind == EXF_GZIP && inflateInit2(&u->gzip, GZIP_ONLY) != Z_OK)
        rc = exf_fail(err, EXF_NOSPACE, "%s: no memory to unpack it", exf_file_path(f));
    if (kind == EXF_ZSTD && (!(u->zstd = ZSTD_createDStream()) ||
                             ZSTD_isError(ZSTD_DCtx_setParameter(u->zstd, ZSTD_d_windowLogMax, WINDOW_LOG))))
        rc = exf_fail(err, EXF_NOSPACE, "%s: no memory to unpack it", exf_file_path(f));
    if (rc != EXF_OK) goto out;
    u->kind = kind;
    *out = u;
    return EXF_OK;
out:
    exf_unpack_close(u);
    return rc;
}

void exf_unpack_close(exf_unpacker *u)
{
    if (!u) return;
    if (u->kind == EXF_GZIP) inflateEnd(&u->gzip);
    ZSTD_freeDStream(u->zstd);
    exf_mem_free(u);
}

exf_packing exf_unpack_kind(const exf_unpacker *u)
{
    return u->kind;
}

/* ---- what is wrong with a file ------------------------------------------------------------------------------- */

static exf_code damaged(const exf_unpacker *u, const char *why, exf_err *err)
{
    unsigned long long at = u->at - (u->end - u->begin);
    if (u->between && u->one_ended)
        return exf_fail(err, EXF_FORMAT, "%s: what follows its %s data at byte %llu is no %s: %s", exf_file_path(u->file),
                        exf_packing_name(u->kind), at, exf_packing_name(u->kind), why);
    return exf_fail(err, EXF_FORMAT, "%s: its %s data are damaged near byte %llu: %s", exf_file_path(u->file),
                    exf_packing_name(u->kind), at, why);
}

/* ---- steps ----------------------------------------------------------------------------------------------------- */

/* The steps unpack some of the input to buf[*got..n). */

static exf_code step_gzip(exf_unpacker *u, char *buf, size_t n, size_t *got, exf_err *err)
{
    z_stream *z = &u->gzip;
    size_t most = n - *got < 1u << 30 ? n - *got : 1u << 30;
    z->next_in = u->input + u->begin;
    z->avail_in = (uInt)(u->end - u->begin);
    z->next_out = (unsigned char *)buf + *got;
    z->avail_out = (uInt)most;
    int done = inflate(z, Z_NO_FLUSH);
    if (done == Z_MEM_ERROR) return exf_fail(err, EXF_NOSPACE, "%s: no memory to unpack it", exf_file_path(u->file));
    if (done != Z_OK && done != Z_STREAM_END && done != Z_BUF_ERROR) return damaged(u, z->msg ? z->msg : "no gzip", err);
    u->begin = u->end - z->avail_in;
    *got += most - z->avail_out;
    u->between = done == Z_STREAM_END;
    if (u->between) {
        u->one_ended = 1;
        (void)inflateReset(z);
    }
    return EXF_OK;
}

static exf_code step_zstd(exf_unpacker *u, char *buf, size_t n, size_t *got, exf_err *err)
{
    ZSTD_inBuffer in = {u->input, u->end, u->begin};
    ZSTD_outBuffer out = {buf, n, *got};
    size_t left = ZSTD_decompressStream(u->zstd, &out, &in);
    if (ZSTD_isError(left)) return damaged(u, ZSTD_getErrorName(left), err);
    u->begin = in.pos;
    *got = out.pos;
    u->between = left == 0;
    u->one_ended |= u->between;
    return EXF_OK;
}

/* Passes over zeros after the last member, which copies in blocks leave; gzip does so too, where nothing else follows. */
static exf_code skip_zeros(exf_unpacker *u, exf_err *err)
{
    exf_code rc = EXF_OK;
    while (u->begin < u->end) {
        if (u->input[u->begin]) return damaged(u, "zeros and other bytes", err);
        if (++u->begin < u->end) continue;
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(fill(u, err));
    }
out:
    return rc;
}

exf_code exf_unpack_read(exf_unpacker *u, void *buf, size_t n, size_t *got, exf_err *err)
{
    exf_code rc = EXF_OK;
    *got = 0;
    while (*got < n) {
        size_t before = *got;
        if (u->begin == u->end) EXF_TRY(fill(u, err));
        if (u->kind == EXF_GZIP && u->between && u->one_ended && u->begin < u->end && !u->input[u->begin])
            EXF_TRY(skip_zeros(u, err));
        int at_end = u->begin == u->end;
        if (at_end && (u->between || u->kind == EXF_PLAIN)) break;
        if (u->kind == EXF_PLAIN) {
            size_t some = u->end - u->begin < n - *got ? u->end - u->begin : n - *got;
            memcpy((char *)buf + *got, u->input + u->begin, some);
            u->begin += some;
            *got += some;
            continue;
        }
        EXF_TRY(u->kind == EXF_GZIP ? step_gzip(u, buf, n, got, err) : step_zstd(u, buf, n, got, err));
        u->given += *got - before;
        uint64_t size = exf_file_size(u->file);
        if (u->given > EXF_UNPACK_FREE && u->given / EXF_UNPACK_MOST_TIMES > size)
            return exf_fail(err, EXF_MODEL, "%s: its %llu bytes unpack to more than %d times as many, which no text does",
                            exf_file_path(u->file), (unsigned long long)size, EXF_UNPACK_MOST_TIMES);
        if (at_end && *got == before && !u->between)
            return exf_fail(err, EXF_FORMAT, "%s: truncated: its %llu bytes end inside its %s data", exf_file_path(u->file),
                            (unsigned long long)u->at, exf_packing_name(u->kind));
    }
out:
    return rc;
}
