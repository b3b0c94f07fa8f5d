/* make_checkpoint.c - a checkpoint of random weights in the layout and the number
 * formats of a release, from its config.json alone.
 * usage: make_checkpoint DIR       (DIR/config.json is there; writes DIR/model.safetensors)
 *
 * A matrix [out, in] has elements of size about in^-1/2, so that activations stay of
 * size one; norms are 1, biases 0.  Values come from a block of a few megabytes that
 * every tensor begins at another place of: written in seconds, for speed and memory,
 * not for meaning.  scripts/make_synthetic_checkpoint.py cuts a config to N layers. */
#include "base/hash.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK = 1 << 21, PIECE = 1 << 21 };

/* One tensor to be written: bytes of it are `kind` of values. */
typedef enum { RANDOM_BF16, RANDOM_F32, ONES, ZEROS, CODES_FP8, CODES_FP4, SCALES_E8M0, SCALES_F32, EXPERT_NUMBERS } kind;

typedef struct {
    char *name;
    exf_tensor view;
    kind kind;
    int exponent; /* values are about 2^exponent */
    int columns;  /* of EXPERT_NUMBERS */
} made;

typedef struct {
    made *t;
    size_t n, room;
    const exf_model *m;
    uint16_t *block; /* bfloat16 of size one */
} plan;

static exf_code add(plan *p, const char *name, const char *suffix, exf_dtype dtype, const int64_t *shape, int rank, kind k,
                    int exponent, exf_err *err)
{
    char full[EXF_TENSOR_NAME_LEN + 32];
    exf_code rc = exf_mem_grow(&p->t, &p->room, p->n + 1, sizeof *p->t, "tensors", err);
    if (rc != EXF_OK) return rc;
    made *t = &p->t[p->n];
    memset(t, 0, sizeof *t);
    snprintf(full, sizeof full, "%s%s", name, suffix);
    rc = exf_mem_strdup(&t->name, full, "tensor name", err);
    if (rc != EXF_OK) return rc;
    t->view = (exf_tensor){.name = t->name, .dtype = dtype, .rank = rank};
    memcpy(t->view.shape, shape, (size_t)rank * sizeof *shape);
    t->kind = k;
    t->exponent = exponent;
    t->columns = rank == 2 ? (int)shape[1] : 1;
    p->n++;
    return EXF_OK;
}

static int is_norm(exf_role r)
{
    static const unsigned char norm[EXF_W_COUNT] = {
        [EXF_W_FINAL_NORM] = 1,      [EXF_W_MIXER_NORM] = 1,    [EXF_W_FFN_NORM] = 1,   [EXF_W_Q_NORM] = 1,
        [EXF_W_K_NORM] = 1,          [EXF_W_Q_A_NORM] = 1,      [EXF_W_KV_A_NORM] = 1,  [EXF_W_DELTA_NORM] = 1,
        [EXF_W_KV_NORM] = 1,         [EXF_W_COMPRESS_NORM] = 1, [EXF_W_INDEX_NORM] = 1, [EXF_W_HEAD_MIX_SCALE] = 1,
        [EXF_W_MIXER_MIX_SCALE] = 1, [EXF_W_FFN_MIX_SCALE] = 1,
    };
    return norm[r];
}

static kind kind_of(const exf_tensor_rule *r, exf_dtype dtype, int rank)
{
    if (r->how & EXF_INTEGER) return EXPERT_NUMBERS;
    if (is_norm(r->role)) return r->how & EXF_PLUS_ONE ? ZEROS : ONES;
    if (rank == 1) return ZEROS;
    return dtype == EXF_DT_F32 ? RANDOM_F32 : RANDOM_BF16;
}

/* The half in FP8 or FP4 of a release that is quantised, and its scales. */
static exf_code add_coded(plan *p, const exf_tensor_rule *r, const char *name, const int64_t *shape, int exponent, exf_err *err)
{
    const exf_quantization *q = &p->m->quantization;
    int fp4 = q->fp4_experts && r->where == EXF_IN_EXPERT;
    int64_t rows = fp4 ? 1 : q->block_rows, cols = fp4 ? EXF_FP4_BLOCK : q->block_cols;
    int64_t stored[2] = {shape[0], fp4 ? shape[1] / 2 : shape[1]},
            grid[2] = {(shape[0] + rows - 1) / rows, (shape[1] + cols - 1) / cols};
    char scale[EXF_TENSOR_NAME_LEN];
    exf_code rc = add(p, name, "", fp4 ? EXF_DT_I8 : EXF_DT_F8_E4M3, stored, 2, fp4 ? CODES_FP4 : CODES_FP8, 0, err);
    if (rc != EXF_OK) return rc;
    if (!q->e8m0_scales) return add(p, name, "_scale_inv", EXF_DT_F32, grid, 2, SCALES_F32, exponent, err);
    snprintf(scale, sizeof scale, "%.*sscale", (int)(strlen(name) - strlen("weight")), name);
    return add(p, scale, "", EXF_DT_F8_E8M0, grid, 2, SCALES_E8M0, exponent - (fp4 ? 1 : 0), err);
}

/* A stack of experts in MXFP4, X_blocks, and its scales, X_scales. */
static exf_code add_mxfp4(plan *p, const char *blocks, const int64_t *shape, int rank, int exponent, exf_err *err)
{
    char scales[EXF_TENSOR_NAME_LEN];
    exf_code rc = add(p, blocks, "", EXF_DT_U8, shape, rank, CODES_FP4, 0, err);
    snprintf(scales, sizeof scales, "%.*sscales", (int)(strlen(blocks) - strlen("blocks")), blocks);
    return rc == EXF_OK ? add(p, scales, "", EXF_DT_U8, shape, rank - 1, SCALES_E8M0, exponent - 1, err) : rc;
}

static exf_code add_rule(plan *p, const exf_tensor_rule *r, int layer, exf_err *err)
{
    char name[EXF_TENSOR_NAME_LEN];
    int64_t shape[4];
    int rank = exf_rule_shape(&p->m->arch, r, shape), n = r->where == EXF_IN_EXPERT ? p->m->arch.n_experts : 1;
    exf_dtype dtype = exf_stored_dtype(r->role, r->how);
    int exponent = r->role == EXF_W_EMBED    ? 0
                   : r->role == EXF_W_ROUTER ? 1 - (int)(log2((double)shape[rank - 1]) / 2)
                                             : -(int)(log2((double)shape[rank - 1]) / 2);
    exf_code rc = EXF_OK;
    if (!exf_rule_begins_tensor(r)) return EXF_OK;
    for (int e = 0; rc == EXF_OK && e < n; e++) {
        exf_rule_name(name, p->m, r, layer, e);
        if (r->how & EXF_MXFP4)
            rc = add_mxfp4(p, name, shape, rank, -(int)(log2((double)shape[2] * EXF_FP4_BLOCK) / 2), err);
        else if (p->m->quantization.fp8 && r->how & EXF_LINEAR && rank == 2)
            rc = add_coded(p, r, name, shape, exponent, err);
        else
            rc = add(p, name, "", dtype, shape, rank, kind_of(r, dtype, rank), exponent, err);
    }
    return rc;
}

static exf_code add_all(plan *p, exf_err *err)
{
    for (int l = -1; l < p->m->arch.n_layers; l++)
        for (size_t i = 0; i < p->m->family->n_rules; i++) {
            const exf_tensor_rule *r = &p->m->family->rules[i];
            if (!exf_rule_applies(p->m, r, l)) continue;
            exf_code rc = add_rule(p, r, l, err);
            if (rc != EXF_OK) return rc;
        }
    return EXF_OK;
}

/* ---- bytes ------------------------------------------------------------------------ */

/* Normal numbers would be as good; uniform ones of the same size are quick. */
static void fill_block(uint16_t *block)
{
    for (size_t i = 0; i < BLOCK; i++) {
        union { float f; uint32_t u; } v = {1.732f * (float)((double)(int64_t)exf_rng_u64(1, 2, i) * 0x1p-63)};
        block[i] = (uint16_t)((v.u + 0x8000u) >> 16);
    }
}

static uint16_t scaled(uint16_t v, int exponent)
{
    int e = (v >> 7 & 0xff) + exponent;
    return e <= 0 ? (uint16_t)(v & 0x8000) : (uint16_t)((v & 0x807f) | e << 7);
}

/* n bytes of tensor i from byte `at` on. */
static void fill(const plan *p, size_t i, uint64_t at, unsigned char *out, size_t n)
{
    const made *t = &p->t[i];
    size_t shift = (size_t)exf_rng_u64(3, 4, i) % BLOCK;
    uint16_t *half = (uint16_t *)(void *)out;
    float *full = (float *)(void *)out;
    int64_t *integer = (int64_t *)(void *)out;
    int wide = t->view.dtype == EXF_DT_F32;
    switch (t->kind) {
    case RANDOM_BF16:
        for (size_t k = 0; k < n / 2; k++) half[k] = scaled(p->block[(at / 2 + k + shift) % BLOCK], t->exponent);
        break;
    case RANDOM_F32:
        for (size_t k = 0; k < n / 4; k++) full[k] = exf_bf16_to_f32(scaled(p->block[(at / 4 + k + shift) % BLOCK], t->exponent));
        break;
    case ONES:
        for (size_t k = 0; k < n / (wide ? 4 : 2); k++) {
            if (wide) full[k] = 1;
            if (!wide) half[k] = 0x3f80;
        }
        break;
    case ZEROS: memset(out, 0, n); break;
    case CODES_FP8: /* magnitudes from 2^-3 to 1.875 */
        for (size_t k = 0; k < n; k++) {
            unsigned v = p->block[(at + k + shift) % BLOCK];
            out[k] = (unsigned char)((v >> 8 & 0x80) | (4 + (v >> 3 & 3)) << 3 | (v & 7));
        }
        break;
    case CODES_FP4:
        for (size_t k = 0; k < n; k++) out[k] = (unsigned char)(p->block[(at + k + shift) % BLOCK] ^ (at + k) >> 3);
        break;
    case SCALES_E8M0: memset(out, 127 + t->exponent, n); break;
    case SCALES_F32:
        for (size_t k = 0; k < n / 4; k++) full[k] = ldexpf(1, t->exponent);
        break;
    case EXPERT_NUMBERS:
        for (size_t k = 0; k < n / 8; k++) {
            uint64_t place = at / 8 + k, row = place / (uint64_t)t->columns, column = place % (uint64_t)t->columns;
            integer[k] = (int64_t)((row * 37 + column * 11) % (uint64_t)p->m->arch.n_experts);
        }
        break;
    }
}

typedef struct {
    const plan *p;
    exf_st_writer *w;
} writing;

static exf_code write_tensor(const writing *to, size_t i, exf_err *err)
{
    uint64_t bytes = exf_tensor_bytes(&to->p->t[i].view);
    unsigned char *piece = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&piece, PIECE, 1, "tensor bytes", err));
    for (uint64_t at = 0; at < bytes; at += PIECE) {
        size_t n = bytes - at < PIECE ? (size_t)(bytes - at) : PIECE;
        fill(to->p, i, at, piece, n);
        EXF_TRY(exf_st_writer_put(to->w, i, at, piece, n, err));
    }
out:
    exf_mem_free(piece);
    return rc;
}

static exf_code write_all(const plan *p, const char *path, exf_err *err)
{
    exf_tensor *views = NULL;
    exf_st_writer *w = NULL;
    exf_loop loop = EXF_LOOP;
    exf_code rc;
    EXF_TRY(exf_mem_new(&views, p->n, sizeof *views, "tensors", err));
    for (size_t i = 0; i < p->n; i++) views[i] = p->t[i].view;
    EXF_TRY(exf_st_writer_begin(&w, path, 1, views, p->n, NULL, 0, err));
    writing to = {p, w};
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(p->n, exf_default_threads()))
    for (size_t i = 0; i < p->n; i++) {
        exf_err e;
        if (exf_loop_takes(&loop, i) && write_tensor(&to, i, &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    EXF_TRY(exf_loop_end(&loop, err));
    rc = exf_st_writer_commit(w, err);
    w = NULL;
out:
    exf_st_writer_abort(w);
    exf_mem_free(views);
    return rc;
}

int main(int argc, char **argv)
{
    exf_err err = {.code = EXF_OK};
    exf_model *m = NULL;
    plan p = {.n = 0};
    char path[4096];
    exf_code rc;
    if (argc != 2) {
        fprintf(stderr, "usage: make_checkpoint DIR\n");
        return EXF_USAGE;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", argv[1]);
    EXF_TRY(exf_model_open_part(&m, argv[1], EXF_MODEL_CONFIG, &err));
    p.m = m;
    EXF_TRY(exf_mem_new(&p.block, BLOCK, sizeof *p.block, "random block", &err));
    fill_block(p.block);
    EXF_TRY(add_all(&p, &err));
    EXF_TRY(write_all(&p, path, &err));
    printf("%s: %zu tensors, %d layers of %s\n", path, p.n, m->arch.n_layers, m->family->name);
out:
    if (rc != EXF_OK) fprintf(stderr, "make_checkpoint: %s\n", err.msg);
    for (size_t i = 0; i < p.n; i++) exf_mem_free(p.t[i].name);
    exf_mem_free(p.t);
    exf_mem_free(p.block);
    exf_model_close(m);
    return (int)rc;
}
