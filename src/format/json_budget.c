/* json_budget.c - the memory that a JSON text will take, reckoned from the text before it is parsed; see json.h.
 *
 * jansson takes up to a hundred bytes for one of the text: "[[],[],...". A document of ours takes about ten. */
#include "format/json.h"

#include <inttypes.h>

/* The bytes that jansson takes at most, with its allocator's part: for an object and its first table, an array and its
 * first elements, a string or a key with its place in a table, and each element after a comma. */
enum { OBJECT = 288, ARRAY = 160, STRING = 144, ELEMENT = 64 };

static const char *behind_string(const char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\' && at + 1 < end) at++;
    return at;
}

static uint64_t reckon(const char *at, const char *end)
{
    uint64_t bytes = 0;
    for (; at < end; at++) switch (*at) {
        case '{': bytes += OBJECT; break;
        case '[': bytes += ARRAY; break;
        case ',': bytes += ELEMENT; break;
        case '"': {
            const char *to = behind_string(at, end);
            bytes += STRING + (uint64_t)(to - at);
            at = to;
            break;
        }
        default: break;
        }
    return bytes;
}

exf_code exf_json_budget(const char *bytes, size_t len, uint64_t most, const char *where, exf_err *err)
{
    if (len <= most / OBJECT) return EXF_OK; /* the usual case: no text of this length can */
    uint64_t need = reckon(bytes, bytes + len);
    if (need <= most) return EXF_OK;
    return exf_fail(err, EXF_FORMAT,
                    "%s: its %zu bytes of JSON would take %" PRIu64 " bytes of memory, at most %" PRIu64 " are given", where, len,
                    need, most);
}
