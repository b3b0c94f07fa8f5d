/* hash_fixtures.h - two copies of the golden DeepSeek-V4 that are one model: in the hash layers experts e, e + 4, e + 8 and
 * e + 12 are the same expert.  The tables of one name an expert once, twice or three times for a token, those of the other
 * its twins instead, which is what a reference computes that adds up every slot. */
#ifndef EXF_TESTS_HASH_FIXTURES_H
#define EXF_TESTS_HASH_FIXTURES_H
#include "tests/support/golden_run.h"
#include "tests/support/scratch_fixtures.h"

#include <sys/stat.h>

enum { HASH_LAYERS = 2, HASH_K = 3, HASH_SAME = 4, HASH_E = 16 };

/* Finds the bytes of a tensor in a checkpoint's file. */
static inline char *hash_tensor(char *bytes, const char *name, size_t *n)
{
    char key[128];
    uint64_t header;
    unsigned long begin, end;
    memcpy(&header, bytes, 8);
    snprintf(key, sizeof key, "\"%s\"", name);
    const char *entry = strstr(bytes + 8, key);
    ck_assert_msg(entry != NULL, "no tensor %s", name);
    ck_assert_int_eq(sscanf(strstr(entry, "data_offsets"), "data_offsets\":[%lu,%lu", &begin, &end), 2);
    *n = end - begin;
    return bytes + 8 + header + begin;
}

/* Makes experts of the same number modulo 4, and their rows of the router, the same. */
static inline void hash_make_twins(char *bytes, int layer)
{
    static const char *const parts[] = {"w1", "w2", "w3"};
    char name[96];
    size_t n;
    for (int e = HASH_SAME; e < HASH_E; e++)
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "layers.%d.ffn.experts.%d.%s.weight", layer, e % HASH_SAME, parts[i]);
            const char *from = hash_tensor(bytes, name, &n);
            snprintf(name, sizeof name, "layers.%d.ffn.experts.%d.%s.weight", layer, e, parts[i]);
            memcpy(hash_tensor(bytes, name, &n), from, n);
        }
    snprintf(name, sizeof name, "layers.%d.ffn.gate.weight", layer);
    char *rows = hash_tensor(bytes, name, &n);
    n /= HASH_E;
    for (int e = HASH_SAME; e < HASH_E; e++) memcpy(rows + n * (size_t)e, rows + n * (size_t)(e % HASH_SAME), n);
}

/* The experts of a token: all different, two the same in any two slots, or all the same; times 0, 4 or 8 more for a twin. */
static inline void hash_row(int64_t to[HASH_K], int token, int twins)
{
    int a = token % HASH_SAME, b = (token / 5 + a + 1) % HASH_SAME, c = (b + 1) % HASH_SAME;
    if (b == a) b = (a + 1) % HASH_SAME;
    while (c == a || c == b) c = (c + 1) % HASH_SAME;
    const int experts[5][HASH_K] = {{a, b, c}, {a, a, b}, {a, b, a}, {b, a, a}, {a, a, a}};
    for (int k = 0; k < HASH_K; k++) {
        int before = 0;
        for (int i = 0; i < k; i++) before += experts[token % 5][i] == experts[token % 5][k];
        to[k] = experts[token % 5][k] + twins * HASH_SAME * before;
    }
}

/* Opens the golden's answers with one of the models, which is written to the scratch directory. */
static inline void hash_open(golden_case *c, int twins)
{
    char *bytes, *dir, name[96];
    const char *const folder = twins ? "twins" : "repeats";
    size_t n, size;
    exf_err err;
    golden_open(c, "deepseek_v4");
    exf_model_close(c->model);
    mkdir(exf_scratch(folder), 0700);
    ck_ok(exf_file_slurp("tests/golden/deepseek_v4/config.json", 1 << 20, &bytes, &size, &err), err);
    snprintf(name, sizeof name, "%s/config.json", folder);
    exf_write_file(exf_scratch(name), bytes, size);
    exf_mem_free(bytes);
    ck_ok(exf_file_slurp("tests/golden/deepseek_v4/model.safetensors", 1 << 24, &bytes, &size, &err), err);
    for (int layer = 0; layer < HASH_LAYERS; layer++) {
        hash_make_twins(bytes, layer);
        snprintf(name, sizeof name, "layers.%d.ffn.gate.tid2eid", layer);
        char *table = hash_tensor(bytes, name, &n);
        for (int token = 0; token < (int)(n / 8 / HASH_K); token++) {
            int64_t row[HASH_K];
            hash_row(row, token, twins);
            memcpy(table + (size_t)token * sizeof row, row, sizeof row);
        }
    }
    snprintf(name, sizeof name, "%s/model.safetensors", folder);
    exf_write_file(exf_scratch(name), bytes, size);
    exf_mem_free(bytes);
    snprintf(name, sizeof name, "%s/config.json", folder);
    ck_ok(exf_path_dir(&dir, exf_scratch(name), &err), err);
    ck_ok(exf_model_open(&c->model, dir, &err), err);
    exf_mem_free(dir);
}

/* Slots that a token leaves empty. */
static inline int hash_empty(int token)
{
    return token % 5 == 0 ? 0 : token % 5 == 4 ? 2 : 1;
}
#endif
