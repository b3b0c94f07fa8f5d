/* check_model_refusals.c - checkpoints with one fault each, made from the goldens:
 * opening must refuse them, naming file, tensor and what was expected.
 *
 * A family joins by its golden's name; one whose golden is not there yet is
 * skipped, and said to be. */
#include "tests/support/fixtures.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "model/model.h"

#include <stdio.h>
#include <string.h>

static const char *const goldens[] = {
    "qwen3_moe",   "qwen3_moe_fp8",           "glm4_moe",    "glm4_moe_qknorm_groups",
    "deepseek_v2", "deepseek_v2_qlora_groups", "qwen3_5_moe", "deepseek_v4", "deepseek_v4_fp8_fp4",
    "minimax_m2",  "qwen3_next", "gpt_oss", "gpt_oss_mxfp4", "glm4_moe_lite", "dots1", "glm4v_moe", "qwen3_vl_moe",
    "qwen3_omni_moe", "solar_open", "mistral4", "deepseek_v32", "glm_moe_dsa",
    "hy_v3", "ernie4_5_moe", "granitemoe",
};
enum { N_GOLDENS = sizeof goldens / sizeof *goldens, MAX_TENSORS = 8192 };

/* A golden's tensors in memory, to be spoilt and written as one file. */
typedef struct {
    exf_model *model; /* of the golden as it is */
    exf_tensor tensor[MAX_TENSORS];
    size_t n;
} specimen;

static specimen sample;

static void load(specimen *s, const char *dir)
{
    exf_err e;
    ck_ok(exf_model_open(&s->model, dir, &e), e);
    s->n = s->model->checkpoint->n_stored;
    ck_assert_uint_lt(s->n, MAX_TENSORS - 1);
    for (size_t i = 0; i < s->n; i++) {
        const exf_stored_tensor *from = &s->model->checkpoint->stored[i];
        void *data;
        ck_ok(exf_mem_new(&data, (size_t)from->tensor->nbytes + 4096, 1, "tensor", &e), e); /* room for a shape that grows */
        ck_ok(exf_st_read(from->file, from->tensor, 0, data, (size_t)from->tensor->nbytes, &e), e);
        s->tensor[i] = from->tensor->view;
        s->tensor[i].data = data;
    }
}

static void unload(specimen *s)
{
    for (size_t i = 0; i < s->model->checkpoint->n_stored; i++) exf_mem_free((void *)(uintptr_t)s->tensor[i].data);
    exf_model_close(s->model);
}

/* Opens the specimen as it stands now. */
static exf_code reopen(const specimen *s, exf_err *e)
{
    char *config;
    size_t len;
    exf_model *m;
    ck_ok(exf_file_slurp(s->model->config_path, 1 << 20, &config, &len, e), *e);
    exf_write_file(exf_scratch("config.json"), config, len);
    exf_mem_free(config);
    ck_ok(exf_st_write(exf_scratch("model.safetensors"), 1, s->tensor, s->n, NULL, 0, NULL, e), *e);
    exf_code rc = exf_model_open(&m, exf_scratch("."), e);
    if (rc == EXF_OK) exf_model_close(m);
    return rc;
}

/* ---- what is spoilt ------------------------------------------------------------ */

static size_t index_of(const specimen *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->tensor[i].name, name) == 0) return i;
    ck_abort_msg("the golden lacks %s", name);
    return 0;
}

/* Name of a role's tensor in a layer, of the last expert where there are many. */
static void name_of(const specimen *s, exf_role role, int layer, char out[EXF_TENSOR_NAME_LEN])
{
    const exf_family *f = s->model->family;
    for (size_t i = 0; i < f->n_rules; i++)
        if (f->rules[i].role == role && exf_rule_applies(s->model, &f->rules[i], layer)) {
            exf_rule_name(out, s->model, &f->rules[i], layer, s->model->arch.n_experts - 1);
            return;
        }
    ck_abort_msg("%s has no tensor of role %d in layer %d", f->name, (int)role, layer);
}

static int last_layer(const specimen *s)
{
    return s->model->arch.n_layers - 1; /* a mixture of experts in every golden */
}

/* First tensor of scales, or -1 in a checkpoint that is not quantised. */
static int find_scales(const specimen *s)
{
    for (size_t i = 0; i < s->n; i++) {
        const char *name = s->tensor[i].name;
        if (exf_ends_with(name, ".weight_scale_inv") || exf_ends_with(name, ".scale") || exf_ends_with(name, "_scales"))
            return (int)i;
    }
    return -1;
}

static void drop(specimen *s, size_t i)
{
    exf_tensor gone = s->tensor[i];
    memmove(s->tensor + i, s->tensor + i + 1, (s->n - i - 1) * sizeof gone);
    s->tensor[--s->n] = gone; /* its bytes are still the specimen's */
}

static exf_dtype other_dtype(exf_dtype t)
{
    if (t == EXF_DT_U8) return EXF_DT_I8;
    return exf_dtype_bits(t) == 8 ? EXF_DT_U8 : exf_dtype_bits(t) == 16 ? EXF_DT_I16 : EXF_DT_U32;
}

/* Refused, with every part in the message; the specimen is made whole again. */
static void refused(specimen *s, const char *fault, const char *const *parts, size_t n_parts)
{
    exf_err e = {.msg = ""};
    exf_code rc = reopen(s, &e);
    ck_assert_msg(rc == EXF_MODEL, "%s, %s: %s %s", s->model->dir, fault, exf_code_name(rc), e.msg);
    for (size_t i = 0; i < n_parts; i++)
        ck_assert_msg(strstr(e.msg, parts[i]) != NULL, "%s, %s: \"%s\" lacks \"%s\"", s->model->dir, fault, e.msg, parts[i]);
}

#define REFUSED(s, fault, ...) \
    refused(s, fault, (const char *const[]){__VA_ARGS__}, sizeof(const char *const[]){__VA_ARGS__} / sizeof(char *))

/* One axis of tensor i by `step`; the message must show both shapes. */
static void spoil_shape(specimen *s, const char *fault, size_t i, int axis, int step)
{
    exf_tensor whole = s->tensor[i];
    char have[64], want[64];
    exf_shape_text(want, sizeof want, whole.shape, whole.rank);
    s->tensor[i].shape[axis] += step;
    exf_shape_text(have, sizeof have, s->tensor[i].shape, whole.rank);
    REFUSED(s, fault, "model.safetensors", whole.name, have, "config.json", want);
    s->tensor[i] = whole;
}

static void spoil_dtype(specimen *s, const char *fault, size_t i)
{
    exf_tensor whole = s->tensor[i];
    s->tensor[i].dtype = other_dtype(whole.dtype);
    REFUSED(s, fault, "model.safetensors", whole.name, exf_dtype_name(s->tensor[i].dtype), "expected",
            whole.dtype == EXF_DT_F8_E8M0 || whole.dtype == EXF_DT_U8 ? exf_dtype_name(whole.dtype) : "F32");
    s->tensor[i] = whole;
}

static void spoil_missing(specimen *s, const char *fault, size_t i)
{
    static exf_tensor whole[MAX_TENSORS];
    char want[64];
    size_t n = s->n;
    memcpy(whole, s->tensor, n * sizeof *whole);
    drop(s, i);
    exf_shape_text(want, sizeof want, whole[i].shape, whole[i].rank);
    REFUSED(s, fault, whole[i].name, "missing from the checkpoint", find_scales(s) >= 0 ? "" : want);
    memcpy(s->tensor, whole, n * sizeof *whole);
    s->n = n;
}

static void spoil_layer(specimen *s, int layer)
{
    static exf_tensor whole[MAX_TENSORS];
    char stem[EXF_TENSOR_NAME_LEN], part[32];
    size_t n = s->n;
    name_of(s, EXF_W_MIXER_NORM, layer, stem);
    snprintf(part, sizeof part, "layers.%d.", layer);
    strstr(stem, part)[strlen(part)] = 0;
    memcpy(whole, s->tensor, n * sizeof *whole);
    for (size_t i = n; i-- > 0;)
        if (exf_starts_with(s->tensor[i].name, stem)) drop(s, i);
    ck_assert_uint_lt(s->n, n);
    REFUSED(s, "a layer missing", "config.json", stem, "missing from the checkpoint");
    memcpy(s->tensor, whole, n * sizeof *whole);
    s->n = n;
}

static void spoil_surplus(specimen *s, const char *name)
{
    static const float zero[4];
    exf_tensor displaced = s->tensor[s->n];
    s->tensor[s->n++] = (exf_tensor){name, EXF_DT_F32, 1, {4}, zero};
    REFUSED(s, "a surplus tensor", "model.safetensors", name, "not one that", "config.json", s->model->family->name);
    s->tensor[--s->n] = displaced;
}

START_TEST(one_fault_is_enough)
{
    char dir[128], config[160], router[EXF_TENSOR_NAME_LEN], expert[EXF_TENSOR_NAME_LEN];
    exf_err e;
    specimen *s = &sample;
    snprintf(dir, sizeof dir, "tests/golden/%s", goldens[_i]);
    snprintf(config, sizeof config, "%s/config.json", dir);
    if (!exf_path_exists(config)) {
        printf("skipped: %s is not there\n", dir);
        return;
    }
    load(s, dir);
    ck_ok(reopen(s, &e), e); /* whole, it is opened */
    name_of(s, EXF_W_ROUTER, last_layer(s), router);
    name_of(s, EXF_W_EXPERT_DOWN, last_layer(s), expert);
    spoil_shape(s, "a shape off by one", index_of(s, router), 0, -1);
    spoil_shape(s, "a shape off by one", index_of(s, router), 1, -1);
    spoil_shape(s, "an expert's shape off by one", index_of(s, expert), 0, -1);
    spoil_dtype(s, "a wrong dtype", index_of(s, router));
    spoil_missing(s, "an expert missing", index_of(s, expert));
    spoil_layer(s, last_layer(s));
    spoil_surplus(s, "surplus.weight");
    if (find_scales(s) >= 0) {
        size_t i = (size_t)find_scales(s);
        spoil_missing(s, "a scale missing", i);
        spoil_shape(s, "scales off by one", i, 0, 1);
        spoil_dtype(s, "scales of a wrong dtype", i);
    }
    ck_ok(reopen(s, &e), e);
    unload(s);
}
END_TEST

/* Gives all tensors below "model." another prefix, in memory of the test's. */
static void rename_all(specimen *s, const char *prefix)
{
    static char names[MAX_TENSORS][128];
    for (size_t i = 0; i < s->n; i++) {
        const char *name = s->tensor[i].name, *rest = exf_starts_with(name, "model.") ? name + strlen("model.") : NULL;
        snprintf(names[i], sizeof names[i], "%s%s", rest ? prefix : "", rest ? rest : name);
        s->tensor[i].name = names[i];
    }
}

/* The text model of a composite one is read as it lies there; of another prefix the message says which, and which are known. */
START_TEST(prefixes_are_read_or_named)
{
    exf_err e = {.msg = ""};
    specimen *s = &sample;
    load(s, "tests/golden/qwen3_moe");
    rename_all(s, "model.language_model.");
    ck_ok(reopen(s, &e), e);
    for (size_t i = 0; i < s->n; i++) s->tensor[i].name = s->model->checkpoint->stored[i].tensor->view.name;
    rename_all(s, "thinker.model.");
    REFUSED(s, "another prefix", "model.safetensors", "\"thinker.model.\"", "qwen3_moe", "\"model.\"", "\"model.language_model.\"");
    unload(s);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, one_fault_is_enough, 0, N_GOLDENS);
    tcase_add_test(t, prefixes_are_read_or_named);
}
