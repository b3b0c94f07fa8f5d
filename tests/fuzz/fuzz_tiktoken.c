/* fuzz_tiktoken.c - libFuzzer target: the three files of a tokenizer without tokenizer.json.  The first byte chooses which of them
 * the rest is: 'm' tiktoken.model, 'c' tokenizer_config.json, 'p' the Python file; the others are small ones that are right.
 *   make fuzz FUZZ=tiktoken SECONDS=60 */
#include "tests/fuzz/scratch.h"

#include "base/text.h"
#include "format/json.h"
#include "tokenizer/tokenizer.h"

enum { FILES = 3 };
static const char *const name[FILES] = {"tiktoken.model", "tokenizer_config.json", "own.py"};
static char path[FILES][1200];
static exf_text model;

static const char config[] = "{\"auto_map\":{\"AutoTokenizer\":[\"own.TikTokenTokenizer\",null]},\"bos_token\":\"[B]\","
                             "\"added_tokens_decoder\":{\"257\":{\"content\":\"[B]\"}}}";
static const char python[] = "num_reserved_special_tokens = 2\npat_str = \"|\".join([r'[a-z&&[^b]]+', r\"\"\"[\\s\\S]\"\"\"])\n";

static void clean_up(void)
{
    exf_text_free(&model);
    if (getpid() != scratch_owner) return;
    for (int i = 1; i < FILES; i++) unlink(path[i]);
}

static void set_up(void)
{
    exf_err err;
    for (unsigned c = 0; c < 256; c++) {
        unsigned char byte = (unsigned char)c;
        must(exf_base64_add(&model, &byte, 1, &err) == EXF_OK);
        exf_text_appendf(&model, " %u\n", c);
    }
    exf_text_appendf(&model, "YWM= 256\n");
    must(exf_text_end(&model, &err) == EXF_OK);
    (void)put_input(name[0], (const uint8_t *)model.s, model.len);
    must(atexit(clean_up) == 0); /* before the directory goes */
    for (int i = 0; i < FILES; i++) snprintf(path[i], sizeof path[i], "%s/%s", scratch_dir, name[i]);
}

static void load_and_encode(void)
{
    static const char text[] = "[B]ac abac\n\xe4\xb8\x80<|reserved_token_258|>";
    exf_err err;
    exf_tokenizer *t;
    exf_ids ids = {0};
    exf_code rc = exf_tokenizer_load(&t, path[0], EXF_BOS_AUTO, &err);
    if (rc == EXF_OK) {
        rc = exf_tokenizer_encode(t, text, sizeof text - 1, &ids, &err);
        must(rc == EXF_OK || rc == EXF_MODEL);
        for (size_t i = 0; i < ids.n; i++) must(ids.id[i] >= 0 && ids.id[i] < exf_tokenizer_facts_of(t)->size);
    } else {
        must(rc == EXF_FORMAT || rc == EXF_MODEL || rc == EXF_IO);
        must(!t && strncmp(err.msg, scratch_dir, strlen(scratch_dir)) == 0);
    }
    exf_ids_free(&ids);
    exf_tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const char kinds[] = "mcp";
    if (!model.len) set_up();
    const char *kind = size && bytes[0] ? strchr(kinds, bytes[0]) : NULL;
    if (!kind) return 0;
    put_file(path[0], model.s, model.len);
    put_file(path[1], config, sizeof config - 1);
    put_file(path[2], python, sizeof python - 1);
    put_file(path[kind - kinds], bytes + 1, size - 1);
    load_and_encode();
    return 0;
}
