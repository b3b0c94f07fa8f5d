/* runtime.c - see runtime.h. */
#include "fold/runtime.h"

#include "base/registry.h"

#include <string.h>

#define X(name) extern const exf_runtime exf_runtime_##name;
#include "gen/runtime.inc"
#undef X

EXF_REGISTRY_BEGIN
#define X(name) &exf_runtime_##name,
#include "gen/runtime.inc"
#undef X
EXF_REGISTRY_END(runtime)
EXF_REGISTRY_FIND(runtime)
EXF_REGISTRY_REQUIRE(runtime, "serve.runtime")

/* Returns 1 if the list, separated by `separator`, has the word of n characters. */
static int has_word(const char *list, char separator, const char *word, size_t n)
{
    const char end[2] = {separator, 0};
    for (const char *p = list; *p; p += *p == separator) {
        size_t here = strcspn(p, end);
        if (here == n && memcmp(p, word, n) == 0) return 1;
        p += here;
    }
    return 0;
}

exf_code exf_runtime_takes(const exf_runtime *r, const char *text, const char *kind, int is_prefill, const char *options,
                           exf_err *err)
{
    const char *own = is_prefill ? r->prefill : r->decode, *free_to_set = is_prefill ? r->free_prefill : r->free_decode;
    if (strcmp(kind, "P") != 0 && strcmp(kind, "D") != 0)
        return exf_fail(err, EXF_USAGE, "variant \"%s\": %s runs no %s; it runs P and D", text, r->name, kind);
    if (!free_to_set) return EXF_OK;
    for (const char *p = options; p && *p; p += *p == ',') {
        size_t word = strcspn(p, ","), name = strcspn(p, "=,");
        int is_known = has_word(own, ',', p, word) || has_word(free_to_set, ' ', p, name) ||
                       (!is_prefill && has_word("batch", ' ', p, name)); /* what it meets, not what it is told */
        if (!is_known)
            return exf_fail(err, EXF_USAGE, "variant \"%s\": %s cannot be told %.*s; its %s runs %s%s%s%s", text, r->name,
                            (int)word, p, kind, *own ? "with " : "as it is", own,
                            *free_to_set ? " and takes " : ", without options", free_to_set);
        p += word;
    }
    return EXF_OK;
}

static exf_code refuse_family(const exf_runtime *r, const char *family, exf_err *err)
{
    exf_text others = {0}; /* "exfold and vllm-qwen3 serve": the runtimes of the family */
    size_t n = 0, named = 0;
    for (int counts = 1; counts >= 0; counts--)
        for (size_t i = 0; exf_runtime_at(i); i++) {
            const exf_runtime *other = exf_runtime_at(i);
            if (other->family && strcmp(other->family, family) != 0) continue;
            if (counts) n++;
            else exf_text_appendf(&others, "%s%s", !named ? "" : named + 1 < n ? ", " : " and ", other->name), named++;
        }
    exf_code rc = exf_text_end(&others, err);
    if (rc == EXF_OK)
        rc = exf_fail(err, EXF_MODEL, "serve.runtime: %s serves %s, the model is of the family %s, which %s serve%s", r->name,
                      r->family, family, others.s, n > 1 ? "" : "s");
    exf_text_free(&others);
    return rc;
}

exf_code exf_runtime_serves(const exf_runtime *r, const char *family, const exf_architecture *a, exf_err *err)
{
    if (r->family && strcmp(family, r->family) != 0) return refuse_family(r, family, err);
    if (a->top_k > r->max_top_k)
        return exf_fail(err, EXF_MODEL, "serve.runtime: %s takes at most %d experts per token, the model runs %d", r->name,
                        r->max_top_k, a->top_k);
    return EXF_OK;
}

exf_code exf_runtime_takes_prompts(const exf_runtime *r, int64_t prefill_tokens, exf_err *err)
{
    if (!r->decodes_prompts || prefill_tokens == 0) return EXF_OK;
    return exf_fail(err, EXF_USAGE, "validate.prefill_tokens is %lld: %s remaps prompts as it does decode steps; leave it at 0",
                    (long long)prefill_tokens, r->name);
}

exf_code exf_runtime_check(const exf_runtime *r, const struct exf_variant *v, const exf_architecture *a, exf_err *err)
{
    return r->check ? r->check(v, a, err) : EXF_OK;
}
