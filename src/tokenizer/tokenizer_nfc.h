/* tokenizer_nfc.h - converts text to Unicode normal form C; the only wrapper of utf8proc. */
#ifndef EXF_TOKENIZER_TOKENIZER_NFC_H
#define EXF_TOKENIZER_TOKENIZER_NFC_H
#include "base/text.h"

/* Buffers that one thread reuses; zero-initialise, exf_nfc_free. */
typedef struct {
    exf_text text;             /* the last result */
    int32_t *point, *sorted;   /* code points; a buffer to sort long runs of marks */
    size_t n, cap, sorted_cap;
} exf_nfc_work;

/* Replaces *bytes, *len (valid UTF-8) by their NFC: unchanged if a quick check says that
 * they are in NFC, else pointing into w until the next call. */
exf_code exf_nfc(exf_nfc_work *w, const char **bytes, size_t *len, exf_err *err) EXF_CHECKED;
void exf_nfc_free(exf_nfc_work *w);
#endif
