/* fuzz_tokenizer.c - libFuzzer target.  The first byte chooses: 'j' loads the rest
 * as a tokenizer.json, 'p' loads a small one with the rest as its Split pattern and
 * encodes a text with it, anything else encodes the rest with a golden tokenizer.
 *   make fuzz FUZZ=tokenizer SECONDS=60 */
#include "base/text.h"
#include "tokenizer/tokenizer.h"
#include "tests/fuzz/scratch.h"

static const char *const shape[] = {"qwen3", "qwen3_5", "glm4", "deepseek_v2", "deepseek_v3_v4", "released/mixtral",
                                    "released/mixtral_metaspace", "released/mixtral_unknown"};
enum { SHAPES = sizeof shape / sizeof shape[0] };

static exf_tokenizer *golden[SHAPES];

static void free_tokenizers(void)
{
    for (int i = 0; i < SHAPES; i++) exf_tokenizer_free(golden[i]);
}

static void set_up(void)
{
    exf_err err;
    must(atexit(free_tokenizers) == 0);
    for (int i = 0; i < SHAPES; i++) {
        char file[128];
        snprintf(file, sizeof file, "tests/golden/tokenizers/%s/tokenizer.json", shape[i]);
        must(exf_tokenizer_load(&golden[i], file, EXF_BOS_AUTO, &err) == EXF_OK);
    }
}

static void encode(const exf_tokenizer *t, const char *text, size_t len)
{
    exf_err err;
    exf_ids ids = {0};
    exf_code rc = exf_tokenizer_encode(t, text, len, &ids, &err);
    int valid = exf_utf8_valid(text, len) == len;
    must(valid ? rc == EXF_OK || rc == EXF_MODEL : rc == EXF_FORMAT);
    must(rc == EXF_OK || ids.n == 0);
    for (size_t i = 0; i < ids.n; i++) must(ids.id[i] >= 0 && ids.id[i] < exf_tokenizer_facts_of(t)->size);
    exf_ids_free(&ids);
}

static void load(const void *bytes, size_t size)
{
    static const char text[] = "It's 12 o'clock,\n  na\xc3\xafve e\xcc\x81 \xe4\xb8\xad \r\n\nend ";
    exf_err err;
    exf_tokenizer *t;
    const char *path = put_input("tokenizer.json", bytes, size);
    exf_code rc = exf_tokenizer_load(&t, path, EXF_BOS_AUTO, &err);
    if (rc == EXF_OK) encode(t, text, sizeof text);
    else must((rc == EXF_FORMAT || rc == EXF_MODEL) && !t && strncmp(err.msg, path, strlen(path)) == 0);
    exf_tokenizer_free(t);
}

static void load_pattern(const uint8_t *bytes, size_t size)
{
    exf_err err;
    exf_text s = {0};
    unsigned next = 0x100;
    exf_text_appendf(&s, "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
                         "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false,\"pattern\":{\"Regex\":\"");
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] >= ' ' && bytes[i] != '"' && bytes[i] != '\\')
            exf_text_append(&s, (const char *)bytes + i, 1);
        else
            exf_text_appendf(&s, "\\u%04x", bytes[i]);
    }
    exf_text_appendf(&s, "\"}},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
                         "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (unsigned c = 0; c < 256; c++) {
        unsigned point = (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174 ? c : next++;
        exf_text_appendf(&s, "%s\"\\u%04x\":%u", c ? "," : "", point, c);
    }
    exf_text_appendf(&s, "}}}");
    must(exf_text_end(&s, &err) == EXF_OK);
    load(s.s, s.len);
    exf_text_free(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (!golden[0]) set_up();
    if (size == 0) return 0;
    if (bytes[0] == 'j') load(bytes + 1, size - 1);
    else if (bytes[0] == 'p') load_pattern(bytes + 1, size - 1);
    else encode(golden[bytes[0] % SHAPES], (const char *)bytes + 1, size - 1);
    return 0;
}
