/* check_architecture.c - src/model/architecture: the text by which models are compared. */
#include "tests/support/model_fixtures.h"

#include <stddef.h>
#include <string.h>

static exf_err e;

static void text_of(const exf_architecture *a, exf_text *out)
{
    memset(out, 0, sizeof *out);
    ck_ok(exf_architecture_text(out, a, &e), e);
}

static void text_of_config(const char *dir, const char *config, exf_text *out)
{
    exf_model *m = NULL;
    if (config) exf_write_file(exf_scratch("config.json"), config, strlen(config));
    ck_ok(exf_model_open_part(&m, dir ? dir : exf_scratch("."), EXF_MODEL_CONFIG, &e), e);
    text_of(&m->arch, out);
    exf_model_close(m);
}

START_TEST(the_text_of_a_released_layout)
{
    exf_text text;
    text_of_config("tests/golden/qwen3_5_moe", NULL, &text);
    ck_assert_str_eq(text.s, "n_layers=4 d_model=64 vocab=512 norm_eps=1e-06 rope.dim=8 rope.theta=1e+07 attention.n_heads=4 "
                             "attention.n_kv_heads=2 attention.head_dim=32 attention.gated=1 deltanet.n_key_heads=2 "
                             "deltanet.n_value_heads=4 deltanet.key_dim=16 deltanet.value_dim=16 deltanet.conv_width=4 "
                             "residual.streams=1 n_experts=16 top_k=4 d_expert=24 d_shared=24 router.n_groups=1 "
                             "router.top_groups=1 router.renormalise=1 router.scaling=1 mixer=deltanet*3,attention*1 is_moe=1*4 "
                             "traits=qk_norm+shared*4");
    exf_text_free(&text);
}
END_TEST

START_TEST(what_no_pass_reads_of_a_config_is_not_in_it)
{
    exf_text plain, same, other;
    text_of_config(NULL, SMALL_CONFIG "false}", &plain);
    text_of_config(NULL, SMALL_CONFIG "false, \"transformers_version\": \"5.23.0\", \"rms_norm_eps\": 0.000001, \"dtype\": "
                                      "\"float32\", \"quantization_config\": {\"quant_method\": \"fp8\"}}", &same);
    text_of_config(NULL, SMALL_CONFIG "false, \"rms_norm_eps\": 1e-5}", &other);
    ck_assert_str_eq(plain.s, same.s);
    ck_assert_str_ne(plain.s, other.s);
    exf_text_free(&plain);
    exf_text_free(&same);
    exf_text_free(&other);
}
END_TEST

/* ---- every field ------------------------------------------------------------------------------- */

#define AT(member) offsetof(exf_architecture, member)
#define END(member) (AT(member) + sizeof ((exf_architecture *)0)->member)
#define LAYERS(member) {AT(member) + 2 * sizeof ((exf_architecture *)0)->member[0], END(member)}

/* What may change without another text: layers that the model has not, what follows from other fields, names, and bytes between
 * members.  A member that is new fails below until the text has it. */
static const struct { size_t begin, end; } not_compared[] = {
    {0, END(n_layers)}, /* it says how much of the lists is read */
    {END(tied_embeddings), AT(norm_eps)}, /* positions: how long sequences may be, which no pass reads */
    LAYERS(attention.window),
    LAYERS(compressed.ratio), LAYERS(mixer), LAYERS(is_moe), {AT(traits), END(traits)}, {AT(model_traits), END(model_traits)},
    {AT(n_moe_layers), END(n_moe_layers)}, {AT(dim), END(dim)}, {AT(prefix), END(prefix)},
    {END(rope[0].yarn), AT(rope[0].factor)}, {END(rope[1].yarn), AT(rope[1].factor)},
    {END(rope[2].yarn), AT(rope[2].factor)}, {END(rope[0].turned), AT(rope[1])}, {END(rope[1].turned), AT(rope[2])},
    {END(rope[2].turned), AT(attention)}, {END(attention.gated), AT(attention.clip)}, {END(attention.window), AT(mla)},
    {END(residual.normed), AT(d_ffn)}, {END(gelu), AT(swiglu_limit)},
    {END(rope[0].truncate), AT(rope[0].amplitude)}, {END(rope[1].truncate), AT(rope[1].amplitude)},
    {END(rope[2].truncate), AT(rope[2].amplitude)},
    {END(mla.v_dim), AT(mla.score_scale)}, {END(mla.index_interleaved), AT(deltanet)},
    {END(deltanet.conv_width), AT(compressed)}, {END(compressed.ratio), AT(residual)},
    {END(router.renormalise), AT(router.epsilon)}, {END(router.expert_scaled), AT(router.scaling)}, {END(is_moe), AT(traits)},
    {END(dim), AT(prefix)},
};

static int is_compared(size_t at)
{
    for (size_t i = 0; i < sizeof not_compared / sizeof *not_compared; i++)
        if (at >= not_compared[i].begin && at < not_compared[i].end) return 0;
    return 1;
}

START_TEST(every_field_is_in_the_text)
{
    exf_architecture a;
    exf_text before, after;
    memset(&a, 0x11, sizeof a);
    a.n_layers = 2;
    text_of(&a, &before);
    for (size_t at = 0; at < sizeof a; at++) {
        if (!is_compared(at)) continue;
        ((unsigned char *)&a)[at] ^= 1;
        text_of(&a, &after);
        ck_assert_msg(strcmp(before.s, after.s) != 0, "byte %zu of exf_architecture is in no word of its text", at);
        ((unsigned char *)&a)[at] ^= 1;
        exf_text_free(&after);
    }
    exf_text_free(&before);
}
END_TEST

/* Where a checkpoint has its tensors makes no other model, nor what follows from other fields; a trait that is new does. */
START_TEST(traits_of_layouts_are_not_in_it)
{
    const unsigned compared =
        ~(unsigned)(EXF_T_DENSE | EXF_T_MOE | EXF_T_ATTENTION | EXF_T_MLA | EXF_T_DELTANET | EXF_T_COMPRESSED | EXF_T_Q_LORA |
                    EXF_T_NO_Q_LORA | EXF_T_RATIO_SHORT | EXF_T_RATIO_LONG | EXF_T_UNTIED | EXF_T_NARROW);
    exf_architecture a = {.n_layers = 1};
    exf_text none, one;
    text_of(&a, &none);
    for (int bit = 0; bit < 32; bit++) {
        a.traits[0] = 1u << bit;
        text_of(&a, &one);
        ck_assert_int_eq(strcmp(none.s, one.s) != 0, (int)(compared >> bit & 1));
        exf_text_free(&one);
    }
    a.traits[0] = 0;
    a.rope[EXF_ROPE_MAIN].amplitude = 1; /* as 0 */
    text_of(&a, &one);
    ck_assert_str_eq(none.s, one.s);
    exf_text_free(&one);
    exf_text_free(&none);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, the_text_of_a_released_layout);
    tcase_add_test(t, what_no_pass_reads_of_a_config_is_not_in_it);
    tcase_add_test(t, every_field_is_in_the_text);
    tcase_add_test(t, traits_of_layouts_are_not_in_it);
}
