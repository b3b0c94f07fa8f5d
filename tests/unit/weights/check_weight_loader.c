/* check_weight_loader.c - src/weights/weight_loader: a matrix of several pieces, whose bytes go to a device slice by slice, is
 * there whole and has the identity that it has when it is read otherwise; a file that ends too early ends the load. */
#include "weights/weight_loader.h"
#include "tests/support/fake_device.h"
#include "tests/support/model_fixtures.h"

#include <string.h>
#include <unistd.h>

enum { ROWS = (EXF_WEIGHT_CHUNK_BYTES + EXF_SLICE_BYTES + EXF_SLICE_BYTES / 2) / (2 * T_H) };

/* Writes the small model with an embedding of ROWS rows, and opens it. */
static exf_model *open_tall(void)
{
    small_model m = small_new(1);
    static const char *const tall[] = {"model.embed_tokens.weight", "lm_head.weight"};
    char config[1024];
    exf_model *model;
    exf_err e;
    for (int i = 0; i < 2; i++) {
        int at = small_find(&m, tall[i]);
        exf_mem_free(m.value[at]);
        m.shape[at][0] = ROWS;
        ck_ok(exf_mem_new(&m.value[at], (size_t)ROWS * T_H, sizeof(float), "test tensor", &e), e);
        for (size_t k = 0; k < (size_t)ROWS * T_H; k++) m.value[at][k] = (float)((k * 2654435761u >> 12) % 255) - 127;
    }
    const char *cut = strstr(SMALL_CONFIG, "\"vocab_size\": 6");
    snprintf(config, sizeof config, "%.*s\"vocab_size\": %d%sfalse}", (int)(cut - SMALL_CONFIG), SMALL_CONFIG, (int)ROWS,
             cut + strlen("\"vocab_size\": 6"));
    put_text("config.json", config);
    small_write_part(&m, "model.safetensors", 0, m.n);
    small_free(&m);
    ck_ok(exf_model_open(&model, exf_scratch("."), &e), e);
    return model;
}

static exf_code load_embedding(const exf_model *m, int readers, void *to, exf_err *err)
{
    exf_weight_loader_options o = {.n_slots = 2, .n_readers = readers, .n_layers = m->arch.n_layers, .head = 1};
    exf_layer_weights lw = {.b = fake_device((uint64_t)1 << 40)};
    exf_weight_loader *s = NULL;
    exf_code rc;
    EXF_TRY(exf_weight_loader_open(&s, m, lw.b, EXF_COMPUTE_F32, &o, err));
    for (int i = 0; i < m->arch.n_layers + 2; i++) {
        EXF_TRY(exf_weight_loader_next(s, &lw, err));
        if (i == 0) memcpy(to, lw.w16[EXF_W_EMBED], (size_t)ROWS * T_H * 2);
    }
out:
    exf_weight_loader_close(s, NULL);
    return rc;
}

static void list_identity(const exf_model *m, exf_text *out)
{
    exf_err e;
    for (int part = 0; part < EXF_PART_LAYERS; part++) ck_ok(exf_weight_identity_settle(m->identity, part, &e), e);
    ck_ok(exf_weight_identity_list(m->identity, 0, out, &e), e);
    ck_ok(exf_text_end(out, &e), e);
}

START_TEST(a_tall_matrix_comes_in_slices)
{
    exf_err e;
    exf_text once = {0}, sliced = {0};
    float *want;
    uint16_t *bytes;
    exf_model *m = open_tall();
    ck_ok(exf_mem_new(&want, (size_t)ROWS * T_H, sizeof *want, "test tensor", &e), e);
    ck_ok(exf_mem_new(&bytes, (size_t)ROWS * T_H, sizeof *bytes, "test tensor", &e), e);
    ck_ok(exf_model_read(m, EXF_W_HEAD, -1, 0, want, &e), e);
    ck_ok(exf_model_read(m, EXF_W_FINAL_NORM, -1, 0, want, &e), e);
    ck_ok(exf_model_read(m, EXF_W_EMBED, -1, 0, want, &e), e);
    list_identity(m, &once);
    exf_model_close(m);
    ck_ok(exf_model_open(&m, exf_scratch("."), &e), e);
    ck_ok(load_embedding(m, 1 + _i, bytes, &e), e);
    list_identity(m, &sliced);
    ck_assert_str_eq(once.s, sliced.s);
    for (size_t k = 0; k < (size_t)ROWS * T_H; k++) {
        uint32_t bits = (uint32_t)bytes[k] << 16;
        ck_assert_mem_eq(&bits, &want[k], sizeof bits);
    }
    exf_model_close(m);
    exf_text_free(&once);
    exf_text_free(&sliced);
    exf_mem_free(want);
    exf_mem_free(bytes);
}
END_TEST

/* The second slice of the first piece is not there any more. */
START_TEST(a_file_cut_within_a_piece_ends_the_load)
{
    exf_err e;
    uint16_t *bytes;
    exf_model *m = open_tall();
    const exf_stored_tensor *embed = NULL;
    for (size_t i = 0; i < m->checkpoint->n_stored; i++)
        if (strcmp(m->checkpoint->stored[i].tensor->view.name, "model.embed_tokens.weight") == 0)
            embed = &m->checkpoint->stored[i];
    ck_assert_ptr_nonnull(embed);
    ck_ok(exf_mem_new(&bytes, (size_t)ROWS * T_H, sizeof *bytes, "test tensor", &e), e);
    ck_assert_int_eq(truncate(exf_scratch("model.safetensors"), (off_t)embed->tensor->offset + EXF_SLICE_BYTES * 3 / 2), 0);
    ck_fails(load_embedding(m, 1 + _i, bytes, &e), EXF_FORMAT, e, "model.safetensors");
    exf_model_close(m);
    exf_mem_free(bytes);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "slices");
    tcase_add_loop_test(t, a_tall_matrix_comes_in_slices, 0, 4);
    tcase_add_loop_test(t, a_file_cut_within_a_piece_ends_the_load, 0, 4);
}
