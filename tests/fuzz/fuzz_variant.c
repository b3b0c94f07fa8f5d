/* fuzz_variant.c - libFuzzer target: any text as a variant and as a limit of the
 * quality gate, beside two variants that are there: an answer that a second reading
 * gives too, or one refusal with a message.
 *   make fuzz FUZZ=variant SECONDS=60 */
#include "fold/variant.h"
#include "validate/gates.h"
#include "tests/fuzz/fuzz.h"

enum { BESIDE = 2 };

static void check(const exf_variant *v, int n_experts, int top_k)
{
    exf_err err = {EXF_OK, ""};
    exf_code rc = exf_variant_check(v, n_experts, top_k, &err);
    must(rc == EXF_OK || ((rc == EXF_USAGE || rc == EXF_MODEL) && err.msg[0]));
}

/* A batch may stand in the name of any decode variant, unless there is no room. */
static void batch(const exf_variant *v)
{
    exf_err err = {EXF_OK, ""};
    exf_variant with = *v, again;
    if (v->decode == EXF_DECODE_NONE || v->batch) return;
    exf_code rc = exf_variant_set_batch(&with, 7, &err);
    must(rc == EXF_OK || (rc == EXF_USAGE && strlen(v->name) + strlen(",batch=7") >= sizeof v->name));
    if (rc != EXF_OK) return;
    memset(&again, 0, sizeof again);
    must(exf_variant_parse(&again, with.name, &err) == EXF_OK && memcmp(&with, &again, sizeof again) == 0);
    must(exf_variant_is_named(with.name, v->name) && exf_variant_is_named(with.name, with.name));
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
    batch(v);
    return 1;
}

static void gate(const char *text, const exf_variant *v, size_t n)
{
    exf_err err = {EXF_OK, ""};
    exf_quality_gate g;
    exf_validate_lane lane[BESIDE + 1];
    for (size_t i = 0; i < n; i++) lane[i] = (exf_validate_lane){.variant = v[i], .role = EXF_LANE_ASKED};
    exf_code rc = exf_quality_gate_parse(&g, text, lane, n, &err);
    must(rc == EXF_OK || (rc == EXF_USAGE && err.code == rc && err.msg[0]));
    if (rc != EXF_OK) return;
    size_t named = 0;
    while (named < n && !exf_variant_is_named(v[named].name, g.variant)) named++;
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
