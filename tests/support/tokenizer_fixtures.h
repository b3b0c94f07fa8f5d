/* tokenizer_fixtures.h - a tiny tokenizer.json, put together from parts: the id of
 * a byte is the byte, further tokens start at 256. */
#ifndef EXF_TESTS_TOKENIZER_FIXTURES_H
#define EXF_TESTS_TOKENIZER_FIXTURES_H
#include "tests/support/fixtures.h"

#include "base/text.h"
#include "tokenizer/tokenizer.h"

#include <string.h>

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}"
#define STEPS(list) "{\"type\":\"Sequence\",\"pretokenizers\":[" list "," BYTE_LEVEL "]}"
#define SPLIT(kind, pattern, behavior, invert) \
    "{\"type\":\"Split\",\"pattern\":{\"" kind "\":\"" pattern "\"},\"behavior\":\"" behavior "\",\"invert\":" invert "}"
#define REGEX(pattern) STEPS(SPLIT("Regex", pattern, "Isolated", "false"))
#define ADDED(content, id, normalized)      \
    "{\"id\":" id ",\"content\":\"" content \
    "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":" normalized ",\"special\":true}"
#define NFC "{\"type\":\"NFC\"}"

/* JSON text for each part; NULL: left out, or what makes the plainest tokenizer. */
typedef struct { const char *normalizer, *pre, *post, *added, *options, *vocab, *merges, *top; int lacks; } parts;

static void add_bytes(exf_text *out, int lacks)
{
    unsigned next = 0x100;
    for (unsigned c = 0; c < 256; c++) {
        unsigned point = (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174 ? c : next++;
        if (lacks && c == (unsigned)lacks) continue;
        exf_text_appendf(out, "%s\"\\u%04x\":%u", c ? "," : "", point, c);
    }
}

static const char *or_else(const char *s, const char *otherwise)
{
    return s ? s : otherwise;
}

/* Writes the file; the path of it. */
static const char *make(parts p)
{
    exf_text s = {0};
    const char *path = exf_scratch("tokenizer.json");
    exf_text_appendf(
              &s, "{%s\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,\"added_tokens\":[%s],\"model\":{%s,\"vocab\":{",
              or_else(p.top, ""), or_else(p.normalizer, "null"), or_else(p.pre, BYTE_LEVEL), or_else(p.post, "null"),
              or_else(p.added, ""), or_else(p.options, "\"type\":\"BPE\""));
    add_bytes(&s, p.lacks);
    exf_text_appendf(&s, "%s%s},\"merges\":[%s]}}", p.vocab ? "," : "", or_else(p.vocab, ""), or_else(p.merges, ""));
    exf_write_file(path, s.s, s.len);
    exf_text_free(&s);
    return path;
}
#endif
