/* base64.c - see base64.h. */
#include "format/base64.h"

static void encode(const uint8_t *in, size_t n, char out[4])
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t word = (uint32_t)in[0] << 16 | (n > 1 ? (uint32_t)in[1] << 8 : 0) | (n > 2 ? in[2] : 0u);
    for (int i = 0; i < 4; i++) out[i] = digit[word >> (18 - 6 * i) & 63];
    if (n < 3) out[3] = '=';
    if (n < 2) out[2] = '=';
}

exf_code exf_base64_add(exf_text *out, const void *bytes, size_t n, exf_err *err)
{
    enum { TRIPLES = 1024 };
    const uint8_t *in = bytes;
    char block[4 * TRIPLES];
    for (size_t at = 0; at < n;) {
        size_t len = 0;
        for (; at < n && len < sizeof block; at += 3, len += 4) encode(in + at, n - at, block + len);
        exf_code rc = exf_text_add(out, block, len, err);
        if (rc != EXF_OK) return rc;
    }
    return EXF_OK;
}
