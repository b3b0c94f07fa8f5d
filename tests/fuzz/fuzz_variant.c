/* fuzz_variant.c - libFuzzer target: any text as a variant and as a limit of the
 * quality gate, beside two variants that are there: an answer that a second reading
 * gives too, or one refusal with a message.
 *   make fuzz FUZZ=variant SECONDS=60 */
#include "fold/variant.h"
#include "validate/frontier.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { BESIDE = 2 };

static void must(int holds)
{
    if (!holds) abort();
}

static void check(const exf_variant *v, int n_experts, int top_k)
{
    exf_err err = {EXF_OK, ""};
    exf_code rc = exf_variant_check(v, n_experts, top_k, &err);
    must(rc == EXF_OK || ((rc == EXF_USAGE || rc == EXF_MODEL) && err.msg[0]));
}

/* 1 if the text is a variant. */
static int parse(exf_variant *v, const char *text)
{
    exf_err err = {EXF_OK, ""};
    exf_variant again;
    memset(v, 0, sizeof *v);
    exf_code rc = exf_variant_parse(v, text, &err);
    must(rc == EXF_OK || (rc == EXF_USAGE && err.code == rc && err.msg[0]));
    if (rc != EXF_OK) return 0;
    memset(&again, 0, sizeof again);
    must(strcmp(v->name, text) == 0 && (v->prefill != EXF_PREFILL_NONE || v->decode != EXF_DECODE_NONE));
    must(exf_variant_parse(&again, v->name, &err) == EXF_OK && memcmp(v, &again, sizeof again) == 0);
    check(v, 3, 1);
    check(v, 128, 8);
    check(v, 4096, 64);
    return 1;
}

static void gate(const char *text, const exf_variant *v, size_t n)
{
    exf_err err = {EXF_OK, ""};
    exf_quality_gate g;
    exf_code rc = exf_quality_gate_parse(&g, text, v, n, &err);
    must(rc == EXF_OK || (rc == EXF_USAGE && err.code == rc && err.msg[0]));
    if (rc != EXF_OK) return;
    size_t named = 0;
    while (named < n && strcmp(v[named].name, g.variant) != 0) named++;
    must((g.variant[0] == 0 || named < n) && g.metric[0] && g.limit == g.limit);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    exf_variant v[BESIDE + 1];
    char *text = malloc(size + 1);
    must(text != NULL);
    if (size) memcpy(text, bytes, size);
    text[size] = 0;
    must(parse(&v[0], "P4") && parse(&v[1], "P2:projector=joint,ridge=0.1+D8:rank=energy"));
    size_t n = BESIDE + (size_t)parse(&v[BESIDE], text);
    gate(text, v, n);
    gate(text, v, 0);
    free(text);
    return 0;
}
