/* fuzz_yaml.c - any bytes through the YAML door: a tree whose parts can all be
 * reached, or one refusal with a message; never a crash, leak or endless run. */
#include "base/text.h"
#include "format/yaml.h"
#include "tests/fuzz/fuzz.h"

static void walk(const exf_yaml *y, int depth)
{
    must(y && y->line >= 1 && depth <= 33);
    must((y->kind == EXF_YAML_SCALAR) == (y->text != NULL));
    must(y->kind != EXF_YAML_SCALAR || y->n == 0);
    if (y->text) must(exf_utf8_valid(y->text, strlen(y->text)) == strlen(y->text));
    for (size_t i = 0; i < y->n; i++) {
        if (y->kind == EXF_YAML_MAP) must(y->key[i][0] != 0 && (i > 64 || exf_yaml_get(y, y->key[i]) == y->child[i]));
        walk(y->child[i], depth + 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    exf_err err = {EXF_OK, ""};
    exf_yaml *y;
    exf_code rc = exf_yaml_parse(&y, (const char *)data, size, "fuzz.yaml", &err);
    must(rc == EXF_OK || (rc == EXF_USAGE && y == NULL && strncmp(err.msg, "fuzz.yaml:", 10) == 0));
    if (rc == EXF_OK) walk(y, 1);
    exf_yaml_free(y);
    return 0;
}
