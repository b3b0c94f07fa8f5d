/* cost.c - the memory bandwidth of GPUs, and what a row of a validation costs; see cost.h. */
#include "validate/cost.h"

#include "base/text.h"

#include <ctype.h>
#include <string.h>

/* ---- memory bandwidth ---------------------------------------------------------------------------- */

#define GB 1e9

/* Figures of the vendors' data sheets. */
static const exf_gpu gpus[] = {
    {"NVIDIA A10", "A10", 600 * GB},
    {"NVIDIA A10G", "A10G", 600 * GB},
    {"NVIDIA A30", "A30", 933 * GB},
    {"NVIDIA A40", "A40", 696 * GB},
    {"NVIDIA A100-PCIE-40GB", "A100-40GB", 1555 * GB},
    {"NVIDIA A100-SXM4-40GB", "A100-SXM-40GB", 1555 * GB},
    {"NVIDIA A100 80GB PCIe", "A100-80GB", 1935 * GB},
    {"NVIDIA A100-SXM4-80GB", "A100-SXM-80GB", 2039 * GB},
    {"NVIDIA L4", "L4", 300 * GB},
    {"NVIDIA L40", "L40", 864 * GB},
    {"NVIDIA L40S", "L40S", 864 * GB},
    {"NVIDIA H20", "H20", 4000 * GB},
    {"NVIDIA H100 PCIe", "H100-PCIe", 2000 * GB},
    {"NVIDIA H100 80GB HBM3", "H100", 3350 * GB},
    {"NVIDIA H100 NVL", "H100-NVL", 3900 * GB},
    {"NVIDIA GH200 480GB", "GH200", 4000 * GB},
    {"NVIDIA H200", "H200", 4800 * GB},
    {"NVIDIA H200 NVL", "H200-NVL", 4800 * GB},
    {"NVIDIA B200", "B200", 8000 * GB},
    {"NVIDIA B300 SXM6 AC", "B300", 8000 * GB},
    {"NVIDIA GB10", "GB10", 273 * GB},
    {"NVIDIA GeForce RTX 3090", "RTX3090", 936 * GB},
    {"NVIDIA GeForce RTX 4090", "RTX4090", 1008 * GB},
    {"NVIDIA GeForce RTX 5080", "RTX5080", 960 * GB},
    {"NVIDIA GeForce RTX 5090", "RTX5090", 1792 * GB},
    {"NVIDIA RTX A6000", "A6000", 768 * GB},
    {"NVIDIA RTX 6000 Ada Generation", "RTX6000-Ada", 960 * GB},
    {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX-PRO-6000", 1792 * GB},
    {"NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000-Server", 1597 * GB},
    {"AMD Instinct MI300X", "MI300X", 5300 * GB},
    {"AMD Instinct MI325X", "MI325X", 6000 * GB},
    {"AMD Instinct MI355X", "MI355X", 8000 * GB},
};

const exf_gpu *exf_gpu_at(size_t i)
{
    return i < sizeof gpus / sizeof *gpus ? &gpus[i] : NULL;
}

/* Returns the next character of a name in lower case, past blanks, hyphens and underscores; 0 at its end. */
static int next_letter(const char **s)
{
    while (**s == ' ' || **s == '-' || **s == '_') ++*s;
    return **s ? tolower((unsigned char)*(*s)++) : 0;
}

/* Returns 1 if both are one name, however they are written: "RTX 4090" is "rtx4090". */
static int is_name(const char *a, const char *b)
{
    int x, y;
    do {
        x = next_letter(&a);
        y = next_letter(&b);
    } while (x == y && x);
    return x == y;
}

exf_code exf_gpu_require(const char *name, const exf_gpu **out, exf_err *err)
{
    exf_text known = {0};
    for (size_t i = 0; (*out = exf_gpu_at(i)); i++)
        if (is_name(name, (*out)->name) || is_name(name, (*out)->brief)) return EXF_OK;
    for (size_t i = 0; exf_gpu_at(i); i++) exf_text_appendf(&known, "%s%s", i ? ", " : "", exf_gpu_at(i)->brief);
    exf_code rc = exf_text_end(&known, err);
    if (rc == EXF_OK)
        rc = exf_fail(err, EXF_USAGE,
                      "validate.gpu: \"%.60s\" is not known; known are, beside nvidia-smi's own names for them: %s; any other by "
                      "its memory bandwidth: --bandwidth 4.8TB/s", name, known.s);
    exf_text_free(&known);
    return rc;
}

exf_code exf_bandwidth_parse(const char *text, double *out, exf_err *err)
{
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"MB/s", 1e6}, {"GB/s", 1e9}, {"TB/s", 1e12}, {"MiB/s", 0x1p20}, {"GiB/s", 0x1p30}, {"TiB/s", 0x1p40}};
    char number[32];
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        size_t n = strlen(text), unit = strlen(units[i].unit);
        if (!exf_ends_with(text, units[i].unit) || n - unit >= sizeof number) continue;
        memcpy(number, text, n - unit);
        number[n - unit] = '\0';
        if (!exf_parse_f64(number, out) || !(*out > 0)) break;
        *out *= units[i].bytes;
        return EXF_OK;
    }
    return exf_fail(err, EXF_USAGE, "validate.bandwidth: \"%.60s\", expected bytes per second above 0, such as 4.8TB/s or 936GB/s",
                    text);
}

/* ---- cost ---------------------------------------------------------------------------------------- */

exf_cost_model exf_cost_model_of(const exf_model *m, double bandwidth)
{
    static const exf_role routed[] = {EXF_W_EXPERT_GATE, EXF_W_EXPERT_UP, EXF_W_EXPERT_DOWN};
    const exf_architecture *a = &m->arch;
    exf_cost_model c = {.expert_flops = 6.0 * a->d_model * a->d_expert, .bandwidth = bandwidth};
    c.other_bytes = (double)exf_model_layer_bytes(m, -1);
    if (!a->tied_embeddings) c.other_bytes -= (double)exf_model_role_bytes(m, EXF_W_EMBED, -1);
    for (int l = 0; l < a->n_layers; l++) {
        double experts = 0;
        for (size_t i = 0; a->is_moe[l] && i < sizeof routed / sizeof *routed; i++)
            experts += (double)exf_model_role_bytes(m, routed[i], l);
        c.other_bytes += (double)exf_model_layer_bytes(m, l) - experts - (double)exf_model_role_bytes(m, EXF_W_ROUTER_TABLE, l);
        if (a->is_moe[l]) c.expert_bytes[c.n_layers++] = experts / a->n_experts;
    }
    return c;
}

exf_cost exf_cost_of(const exf_cost_model *c, const exf_variant_result *r, int size)
{
    exf_cost cost = {.flops = 0};
    double decodes = 0;
    for (int l = 0; l < c->n_layers; l++) {
        cost.flops += r->layer[l].experts_per_token * c->expert_flops;
        cost.expert_bytes += r->layer[l].experts_per_batch * c->expert_bytes[l];
        decodes += r->layer[l].experts_per_batch;
    }
    cost.step_bytes = cost.expert_bytes + c->other_bytes;
    if (c->bandwidth > 0 && decodes > 0) cost.tokens_per_second = size / (cost.step_bytes / c->bandwidth);
    return cost;
}
