/* pruned_config.c - see pruned_config.h. */
#include "export/pruned_config.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

static const char *const counts[] = {"num_experts", "n_routed_experts", "num_local_experts", NULL},
                        *const predictions[] = {"num_nextn_predict_layers", "mtp_num_hidden_layers", NULL};

static int is_among(const char *const *words, const char *key, size_t n)
{
    for (; *words; words++)
        if (strlen(*words) == n && memcmp(*words, key, n) == 0) return 1;
    return 0;
}

/* The end of the string that begins at p, after its closing quote. */
static size_t end_of_string(const char *text, size_t n, size_t p)
{
    for (p++; p < n && text[p] != '"'; p++) p += text[p] == '\\';
    return p < n ? p + 1 : n;
}

static size_t skip_blanks(const char *text, size_t n, size_t p)
{
    while (p < n && isspace((unsigned char)text[p])) p++;
    return p;
}

/* Finds the integer after a key: *at is its place; returns its length, 0 if no integer follows. */
static size_t find_number(const char *text, size_t n, size_t p, size_t *at)
{
    size_t digits = 0;
    p = skip_blanks(text, n, p);
    if (p >= n || text[p] != ':') return 0;
    *at = skip_blanks(text, n, p + 1);
    while (*at + digits < n && digits < 18 && isdigit((unsigned char)text[*at + digits])) digits++;
    return digits;
}

exf_code exf_pruned_config(exf_text *out, const char *config, size_t n, int64_t experts, int64_t keep, int keeps_prediction,
                           const char *path, exf_err *err)
{
    exf_code rc = EXF_OK;
    size_t done = 0, changed = 0;
    for (size_t p = 0, end; p < n; p = end) {
        size_t at = 0, digits;
        char number[20] = "";
        int64_t value = 0;
        end = p + 1;
        if (config[p] != '"') continue;
        end = end_of_string(config, n, p);
        if ((digits = find_number(config, n, end, &at)) == 0) continue;
        memcpy(number, config + at, digits);
        int is_count = is_among(counts, config + p + 1, end - p - 2) && exf_parse_i64(number, &value) && value == experts;
        if (!is_count && (keeps_prediction || !is_among(predictions, config + p + 1, end - p - 2))) continue;
        EXF_TRY(exf_text_add(out, config + done, at - done, err));
        EXF_TRY(exf_text_addf(out, err, "%" PRId64, is_count ? keep : 0));
        done = end = at + digits;
        changed += (size_t)is_count;
    }
    EXF_TRY(exf_text_add(out, config + done, n - done, err));
    if (!changed)
        rc = exf_fail(err, EXF_MODEL, "%s: no num_experts, n_routed_experts or num_local_experts is %" PRId64, path, experts);
out:
    return rc;
}
