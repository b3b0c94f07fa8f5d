/* check_released.c - the table of released models: every row is what its config says, docs/models.md names no model that is not
 * in it, and every cut has every kind of mixer, of router and of feed-forward that the model has. */
#include "tests/support/released_fixtures.h"

static exf_err e;
static released_table table;

static void read_table(void)
{
    released_read(&table);
}

static exf_model *open_released(const released_model *r)
{
    char dir[80];
    exf_model *m;
    snprintf(dir, sizeof dir, "tests/configs/%s", r->config);
    ck_ok(exf_model_open_part(&m, dir, EXF_MODEL_CONFIG, &e), e);
    return m;
}

/* The numbers of a row, from an architecture. */
static void released_of(released_model *r, const exf_architecture *a)
{
    r->n_experts = a->n_experts;
    r->top_k = a->top_k;
    r->d_model = a->d_model;
    r->d_expert = a->d_expert;
    r->d_shared = a->d_shared;
    r->d_ffn = a->n_moe_layers < a->n_layers ? a->d_ffn : 0;
    r->n_layers = a->n_layers;
    r->heads = a->attention.n_heads;
    r->kv_heads = a->attention.n_kv_heads;
    r->head_dim = a->attention.head_dim;
    if (a->mixer[0] == EXF_MIXER_MLA) {
        r->heads = r->kv_heads = a->mla.n_heads;
        r->head_dim = a->mla.nope_dim + a->mla.rope_dim;
    } else if (a->mixer[0] == EXF_MIXER_COMPRESSED) {
        r->heads = a->compressed.n_heads;
        r->kv_heads = 1;
        r->head_dim = a->compressed.head_dim;
    }
    r->key_heads = a->deltanet.n_key_heads;
    r->value_heads = a->deltanet.n_value_heads;
    r->top_groups = a->router.top_groups;
    r->n_groups = a->router.n_groups;
    r->hash_layers = released_hash_layers(a);
    r->vocab = a->vocab;
}

START_TEST(rows_are_what_configs_say)
{
    for (int i = 0; i < table.n; i++) {
        const released_model *r = &table.row[i];
        released_model found = *r;
        exf_model *m = open_released(r);
        released_of(&found, &m->arch);
        exf_model_close(m);
#define X(field) \
    ck_assert_msg(r->field == found.field, "%s: " #field " is %d, %s says %d", r->name, r->field, r->config, found.field);
        X(n_experts) X(top_k) X(d_model) X(d_expert) X(d_shared) X(d_ffn) X(n_layers) X(heads) X(kv_heads) X(head_dim)
        X(key_heads) X(value_heads) X(top_groups) X(n_groups) X(hash_layers) X(vocab)
#undef X
    }
}
END_TEST

static int is_in_table(const char *name, size_t length)
{
    for (int i = 0; i < table.n; i++)
        if (strlen(table.row[i].name) == length && strncmp(table.row[i].name, name, length) == 0) return 1;
    return 0;
}

/* Of the table of families: | `model_type` | MODEL, MODEL | ... */
START_TEST(docs_name_no_other_model)
{
    char *text, *rest;
    size_t n, named = 0;
    ck_ok(exf_file_slurp("docs/models.md", 1 << 20, &text, &n, &e), e);
    const char *end = strstr(text, "| number format |");
    ck_assert(end != NULL);
    text[end - text] = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, "| `", 3) != 0) continue;
        const char *at = strstr(line + 3, "` | ");
        ck_assert_msg(at != NULL, "%s", line);
        for (at += strlen("` | "); *at != '|'; named++) {
            size_t length = strcspn(at, " ,|");
            ck_assert_msg(is_in_table(at, length), "docs/models.md names %.*s, which " RELEASED_TABLE " lacks", (int)length, at);
            at += length;
            at += strspn(at, " ,");
        }
    }
    exf_mem_free(text);
    ck_assert_uint_gt(named, 20);
}
END_TEST

static int is_kind_in(const exf_architecture *a, const released_kind *k, int by_mixer)
{
    for (int l = 0; l < a->n_layers; l++) {
        released_kind o = released_kind_of(a, l);
        int windows = (o.flags & RELEASED_WINDOW) == (k->flags & RELEASED_WINDOW);
        int same_mixer = o.mixer == k->mixer && o.ratio == k->ratio && windows;
        if (by_mixer ? same_mixer : (o.flags | RELEASED_WINDOW) == (k->flags | RELEASED_WINDOW)) return 1;
    }
    return 0;
}

/* Widths are the release's, too. */
START_TEST(cuts_have_every_kind_of_layer)
{
    for (int i = 0; i < table.n; i++) {
        const released_model *r = &table.row[i];
        exf_model *whole = open_released(r), *cut;
        released_model found = *r;
        released_write_config(r, exf_scratch(""));
        ck_ok(exf_model_open_part(&cut, exf_scratch(""), EXF_MODEL_CONFIG, &e), e);
        for (int l = 0; l < whole->arch.n_layers; l++) {
            released_kind k = released_kind_of(&whole->arch, l);
            ck_assert_msg(is_kind_in(&cut->arch, &k, 0) && is_kind_in(&cut->arch, &k, 1), "%s: the cut has no layer as %d is",
                          r->name, l);
        }
        released_of(&found, &cut->arch);
        ck_assert_int_le(found.n_layers, 3);
        ck_assert(found.n_experts == r->n_experts && found.top_k == r->top_k && found.d_model == r->d_model &&
                  found.d_expert == r->d_expert && found.d_shared == r->d_shared && found.d_ffn == r->d_ffn &&
                  found.heads == r->heads && found.value_heads == r->value_heads && found.n_groups == r->n_groups &&
                  found.vocab == r->vocab);
        exf_model_close(cut);
        exf_model_close(whole);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, read_table, NULL);
    tcase_add_test(t, rows_are_what_configs_say);
    tcase_add_test(t, docs_name_no_other_model);
    tcase_add_test(t, cuts_have_every_kind_of_layer);
}
