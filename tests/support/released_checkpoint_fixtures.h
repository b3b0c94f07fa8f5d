/* released_checkpoint_fixtures.h - a checkpoint in a release's layout, number formats and whole shape, written from its
 * config.json alone, of which little takes room on the disk: what is not written is a hole, and reads as zeros.
 *
 * Only live experts have weights (released_routes_fixtures.h).  Of the embedding the rows of the tokens that are used are written,
 * and of the head nothing.
 *
 * Values come from a block of prime length, in which every tensor begins elsewhere: no two rows, tiles or experts are alike. */
#ifndef EXF_TESTS_RELEASED_CHECKPOINT_FIXTURES_H
#define EXF_TESTS_RELEASED_CHECKPOINT_FIXTURES_H
#include "tests/support/released_routes_fixtures.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "base/text.h"
#include "format/safetensors.h"
#include "model/model.h"
#include "pass/batch.h"

#include <fcntl.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VALUES = 2097143 /* a prime */, EXPONENTS = 24 /* blocks of 2^0 to 2^-23 */, RELEASED_PIECE = 1 << 20 };

typedef enum { FILL_WEIGHTS, FILL_NORM, FILL_FP8, FILL_FP4, FILL_E8M0, FILL_SCALES, FILL_EMBED, FILL_ROUTER, FILL_CHOICE,
               FILL_TABLE, FILL_NOTHING } released_fill;

/* A tensor as rows of so many bytes. */
typedef struct {
    exf_tensor view;
    char *name;
    const exf_tensor_rule *rule;
    released_fill fill;
    int expert;       /* of a tensor of one expert; else -1 */
    int exponent;     /* values are about 2^exponent */
    size_t rows, cols, row_bytes;
    size_t each;      /* rows of an expert, of a stack; else all */
    uint64_t offset;  /* in the file */
    size_t salt;      /* where it begins in the block */
} released_tensor;

typedef struct {
    exf_model *m; /* of the config alone */
    released_routes to;
    released_tensor *t;
    size_t n, room;
    uint16_t *block[EXPONENTS]; /* bfloat16 of size 2^-exponent */
    unsigned char *codes[2];    /* FP8, FP4 */
    int fd;
} released_checkpoint;

/* ---- tensors ------------------------------------------------------------------------------------- */

static inline void released_need_block(released_checkpoint *c, int exponent)
{
    exf_err e;
    ck_assert_int_gt(exponent, -EXPONENTS);
    ck_assert_int_le(exponent, 0);
    if (c->block[-exponent]) return;
    ck_ok(exf_mem_new(&c->block[-exponent], VALUES, sizeof(uint16_t), "test", &e), e);
    for (size_t i = 0; i < VALUES; i++) {
        union { float f; uint32_t u; } v = {ldexpf(1.732f * (float)((double)(int64_t)exf_rng_u64(1, 2, i) * 0x1p-63), exponent)};
        c->block[-exponent][i] = (uint16_t)((v.u + 0x8000u) >> 16);
    }
}

static inline void released_add(released_checkpoint *c, const char *name, exf_dtype dtype, const int64_t *shape, int rank,
                                const exf_tensor_rule *r, int expert, released_fill fill, int exponent)
{
    exf_err e;
    ck_ok(exf_mem_grow(&c->t, &c->room, c->n + 1, sizeof *c->t, "test", &e), e);
    released_tensor *t = &c->t[c->n++];
    memset(t, 0, sizeof *t);
    ck_ok(exf_mem_strdup(&t->name, name, "test", &e), e);
    t->view = (exf_tensor){.name = t->name, .dtype = dtype, .rank = rank};
    memcpy(t->view.shape, shape, (size_t)rank * sizeof *shape);
    t->rule = r;
    t->expert = expert;
    t->fill = fill;
    t->exponent = exponent;
    int stack = r->where == EXF_IN_STACK, matrices = stack && rank > 2;
    t->rows = rank == 1 ? 1 : (size_t)(matrices ? shape[0] * shape[1] : shape[0]);
    t->each = matrices ? (size_t)shape[1] : stack ? 1 : t->rows;
    t->cols = (size_t)exf_tensor_count(&t->view) / t->rows;
    t->row_bytes = t->cols * exf_dtype_bits(dtype) / 8;
    t->salt = (size_t)(exf_rng_u64(3, 4, c->n) % VALUES);
    if (fill == FILL_WEIGHTS || fill == FILL_NORM || fill == FILL_EMBED || fill == FILL_ROUTER) released_need_block(c, exponent);
}

static inline int released_is_norm(exf_role r)
{
    static const unsigned char norm[EXF_W_COUNT] = {
        [EXF_W_FINAL_NORM] = 1, [EXF_W_MIXER_NORM] = 1, [EXF_W_FFN_NORM] = 1, [EXF_W_Q_NORM] = 1, [EXF_W_K_NORM] = 1,
        [EXF_W_Q_A_NORM] = 1, [EXF_W_KV_A_NORM] = 1, [EXF_W_DELTA_NORM] = 1, [EXF_W_KV_NORM] = 1, [EXF_W_COMPRESS_NORM] = 1,
        [EXF_W_INDEX_NORM] = 1, [EXF_W_HEAD_MIX_SCALE] = 1, [EXF_W_MIXER_MIX_SCALE] = 1, [EXF_W_FFN_MIX_SCALE] = 1,
    };
    return norm[r];
}

static inline released_fill released_fill_of(const exf_tensor_rule *r)
{
    if (r->how & EXF_INTEGER) return FILL_TABLE;
    if (released_is_norm(r->role)) return FILL_NORM;
    switch (r->role) {
    case EXF_W_EMBED: return FILL_EMBED;
    case EXF_W_HEAD: return FILL_NOTHING;
    case EXF_W_ROUTER: return FILL_ROUTER;
    case EXF_W_ROUTER_BIAS: return FILL_CHOICE;
    default: return FILL_WEIGHTS;
    }
}

/* Roles whose rows are columns of the hidden state. */
static inline int released_writes_tags(exf_role r)
{
    return r == EXF_W_O || r == EXF_W_O_B || r == EXF_W_DELTA_OUT || r == EXF_W_EXPERT_DOWN || r == EXF_W_SHARED_DOWN ||
           r == EXF_W_DENSE_DOWN;
}

/* Of a matrix with so many columns, so that its products are of size one, or twice that after an attention's mean; biases are an
 * eighth, and the router's small columns add up to a hundredth at most. */
static inline int released_exponent(const exf_tensor_rule *r, size_t cols, int rank)
{
    int root = (int)(log2((double)cols) / 2 + 0.5);
    if (r->role == EXF_W_EMBED) return 0;
    if (r->role == EXF_W_ROUTER) return -root - 7;
    if (r->role == EXF_W_ROUTER_SHIFT) return -7;
    if (r->role == EXF_W_O || r->role == EXF_W_O_B || r->role == EXF_W_DELTA_OUT) return 1 - root;
    return rank == 1 || released_is_norm(r->role) ? -3 : -root;
}

/* FP8 or FP4 and its scales, as released. */
static inline void released_add_coded(released_checkpoint *c, const exf_tensor_rule *r, const char *name, const int64_t *shape,
                                      int expert)
{
    const exf_quantization *q = &c->m->quantization;
    int fp4 = q->fp4_experts && r->where == EXF_IN_EXPERT, exponent = released_exponent(r, (size_t)shape[1], 2);
    int64_t rows = fp4 ? 1 : q->block_rows, cols = fp4 ? EXF_FP4_BLOCK : q->block_cols;
    int64_t stored[2] = {shape[0], fp4 ? shape[1] / 2 : shape[1]},
            grid[2] = {(shape[0] + rows - 1) / rows, (shape[1] + cols - 1) / cols};
    char scale[EXF_TENSOR_NAME_LEN + 32];
    released_add(c, name, fp4 ? EXF_DT_I8 : EXF_DT_F8_E4M3, stored, 2, r, expert, fp4 ? FILL_FP4 : FILL_FP8, 0);
    if (q->e8m0_scales)
        snprintf(scale, sizeof scale, "%.*sscale", (int)(strlen(name) - strlen("weight")), name);
    else
        snprintf(scale, sizeof scale, "%s_scale_inv", name);
    released_add(c, scale, q->e8m0_scales ? EXF_DT_F8_E8M0 : EXF_DT_F32, grid, 2, r, expert,
                 q->e8m0_scales ? FILL_E8M0 : FILL_SCALES, exponent - (fp4 ? 2 : 0));
}

static inline void released_add_mxfp4(released_checkpoint *c, const exf_tensor_rule *r, const char *blocks, const int64_t *shape,
                                      int rank)
{
    char scales[EXF_TENSOR_NAME_LEN];
    int exponent = released_exponent(r, (size_t)shape[2] * EXF_FP4_BLOCK, 2) - 2;
    released_add(c, blocks, EXF_DT_U8, shape, rank, r, -1, FILL_FP4, 0);
    snprintf(scales, sizeof scales, "%.*sscales", (int)(strlen(blocks) - strlen("blocks")), blocks);
    released_add(c, scales, EXF_DT_U8, shape, rank - 1, r, -1, FILL_E8M0, exponent);
}

static inline void released_add_rule(released_checkpoint *c, const exf_tensor_rule *r, int layer)
{
    const exf_model *m = c->m;
    char name[EXF_TENSOR_NAME_LEN];
    int64_t shape[4];
    int rank = exf_rule_shape(&m->arch, r, shape), n = r->where == EXF_IN_EXPERT ? m->arch.n_experts : 1;
    for (int x = 0; x < n; x++) {
        int expert = r->where == EXF_IN_EXPERT ? x : -1;
        exf_rule_name(name, m, r, layer, x);
        if (r->how & EXF_MXFP4) {
            released_add_mxfp4(c, r, name, shape, rank);
        } else if (m->quantization.fp8 && r->how & EXF_LINEAR && rank == 2 && !exf_quantization_exempts(&m->quantization, name)) {
            released_add_coded(c, r, name, shape, expert);
        } else {
            released_add(c, name, exf_stored_dtype(r->role, r->how), shape, rank, r, expert, released_fill_of(r),
                         released_exponent(r, (size_t)shape[rank - 1], rank));
        }
    }
}

static inline void released_add_all(released_checkpoint *c)
{
    for (int l = -1; l < c->m->arch.n_layers; l++)
        for (size_t i = 0; i < c->m->family->n_rules; i++) {
            const exf_tensor_rule *r = &c->m->family->rules[i];
            if (exf_rule_applies(c->m, r, l) && exf_rule_begins_tensor(r)) released_add_rule(c, r, l);
        }
}

/* ---- rows ------------------------------------------------------------------------------------------ */

/* Copies n elements of a block that repeats, from element `at` on. */
static inline void released_copy(void *out, const void *block, size_t size, size_t at, size_t n)
{
    for (size_t done = 0, from = at % VALUES; done < n; from = 0) {
        size_t some = n - done < VALUES - from ? n - done : VALUES - from;
        memcpy((char *)out + done * size, (const char *)block + from * size, some * size);
        done += some;
    }
}

static inline void released_put(const released_tensor *t, void *row, size_t column, float v)
{
    union { float f; uint32_t u; } bits = {v};
    if (t->view.dtype == EXF_DT_F32)
        ((float *)row)[column] = v;
    else
        ((uint16_t *)row)[column] = (uint16_t)((bits.u + 0x7fffu + (bits.u >> 16 & 1)) >> 16);
}

/* Value `at` of the block of size one. */
static inline float released_value(const released_checkpoint *c, const released_tensor *t, size_t at)
{
    return exf_bf16_to_f32(c->block[-t->exponent][(t->salt + at) % VALUES]);
}

/* Floats or bfloat16 of the block. */
static inline void released_fill_plain(const released_checkpoint *c, const released_tensor *t, size_t row, void *out)
{
    size_t at = t->salt + row * t->cols;
    if (t->view.dtype != EXF_DT_F32)
        released_copy(out, c->block[-t->exponent], sizeof(uint16_t), at, t->cols);
    else
        for (size_t k = 0; k < t->cols; k++) released_put(t, out, k, released_value(c, t, at + k));
}

static inline void released_fill_router(const released_checkpoint *c, const released_tensor *t, size_t row, void *out)
{
    int live = c->to.live_of[row], corrected = 0;
    for (size_t i = 0; i < c->n; i++) corrected |= c->t[i].fill == FILL_CHOICE;
    released_fill_plain(c, t, row, out);
    for (size_t k = 0; k < t->cols; k++) {
        int tag = c->to.tag_of[k];
        if (tag < 0) continue;
        float anchor = live >= 0 ? 0 : corrected ? 2 * RELEASED_GAIN : -2 * RELEASED_GAIN;
        released_put(t, out, k, tag == c->to.n_live ? anchor : tag == live ? RELEASED_GAIN : 0);
    }
}

/* Row i of the tokens that are used. */
static inline void released_fill_token(const released_checkpoint *c, const released_tensor *t, int i, void *out)
{
    released_fill_plain(c, t, (size_t)i, out);
    for (size_t k = 0; k < t->cols; k++)
        if (c->to.tag_of[k] >= 0)
            released_put(t, out, k, released_tag(&c->to, i, c->to.tag_of[k]));
}

/* A token's experts in a layer that asks no router: its K best; the second token names one twice. */
static inline void released_fill_experts(const released_checkpoint *c, const released_tensor *t, int i, int64_t *out)
{
    for (int k = 0; k < (int)t->cols; k++)
        for (int p = 0; p < c->to.n_live; p++)
            if (c->to.rank[i][p] == c->to.n_live - 1 - k) out[k] = c->to.live[p];
    if (i == 1) out[1] = out[0];
}

static inline void released_fill_row(const released_checkpoint *c, const released_tensor *t, size_t row, void *out)
{
    const exf_architecture *a = &c->m->arch;
    size_t at = t->salt + row * t->cols;
    exf_role role = t->rule->role;
    int is_column = t->cols == (size_t)a->d_model &&
                    (t->fill == FILL_NORM || role == EXF_W_O_BIAS || role == EXF_W_EXPERT_DOWN_BIAS);
    if (released_writes_tags(role) && (t->fill == FILL_WEIGHTS || t->fill == FILL_FP8 || t->fill == FILL_FP4) &&
        c->to.tag_of[row % t->each] >= 0) {
        memset(out, 0, t->row_bytes);
        return;
    }
    switch (t->fill) {
    case FILL_NORM:
        for (size_t k = 0; k < t->cols; k++) {
            float v = is_column && c->to.tag_of[k] >= 0 ? 0 : released_value(c, t, at + k);
            released_put(t, out, k, t->rule->how & EXF_PLUS_ONE ? v : 1 + v);
        }
        break;
    case FILL_FP8: released_copy(out, c->codes[0], 1, at, t->row_bytes); break;
    case FILL_FP4: released_copy(out, c->codes[1], 1, at, t->row_bytes); break;
    case FILL_E8M0:
        for (size_t k = 0; k < t->cols; k++)
            ((unsigned char *)out)[k] = (unsigned char)(127 + t->exponent + (c->codes[1][(at + k) % VALUES] & 1));
        break;
    case FILL_SCALES:
        for (size_t k = 0; k < t->cols; k++)
            ((float *)out)[k] = ldexpf(1 + (float)(c->codes[1][(at + k) % VALUES] & 7) / 8, t->exponent);
        break;
    case FILL_ROUTER: released_fill_router(c, t, row, out); break;
    case FILL_CHOICE:
        for (int k = 0; k < a->n_experts; k++) {
            int first = k == 0 || k == a->n_experts - 1;
            released_put(t, out, (size_t)k, c->to.live_of[k] < 0 ? -RELEASED_BIAS : first ? RELEASED_BIAS : 0);
        }
        break;
    default:
        released_fill_plain(c, t, row, out);
        for (size_t k = 0; is_column && k < t->cols; k++)
            if (c->to.tag_of[k] >= 0) released_put(t, out, k, 0);
    }
}

/* ---- the file ----------------------------------------------------------------------------------------- */

static inline void released_write_bytes(const released_checkpoint *c, const void *bytes, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t some = pwrite(c->fd, (const char *)bytes + done, n - done, (off_t)(at + done));
        if (some <= 0) ck_abort_msg("cannot write the checkpoint: is the disk full?");
        done += (size_t)some;
    }
}

static inline void released_write_rows(const released_checkpoint *c, const released_tensor *t, size_t first, size_t n, void *piece)
{
    for (size_t i = 0; i < n; i++) released_fill_row(c, t, first + i, (char *)piece + i * t->row_bytes);
    released_write_bytes(c, piece, n * t->row_bytes, t->offset + first * t->row_bytes);
}

/* Rows of tokens that are used; the pieces of all live experts; or all. */
static inline void released_write_tensor(const released_checkpoint *c, const released_tensor *t)
{
    exf_err e;
    size_t step = RELEASED_PIECE / t->row_bytes;
    char *piece;
    if (t->fill == FILL_NOTHING || (t->expert >= 0 && c->to.live_of[t->expert] < 0)) return;
    if (step < 1) step = 1;
    if (step > t->each) step = t->each;
    ck_ok(exf_mem_new(&piece, step, t->row_bytes, "test", &e), e);
    for (int i = 0; (t->fill == FILL_EMBED || t->fill == FILL_TABLE) && i < RELEASED_IDS; i++) {
        if (t->fill == FILL_EMBED) released_fill_token(c, t, i, piece);
        else released_fill_experts(c, t, i, (int64_t *)(void *)piece);
        released_write_bytes(c, piece, t->row_bytes, t->offset + (uint64_t)released_id(&c->m->arch, i) * t->row_bytes);
    }
    for (size_t first = 0; t->fill != FILL_EMBED && t->fill != FILL_TABLE && first < t->rows; first += t->each) {
        if (t->rule->where == EXF_IN_STACK && c->to.live_of[first / t->each] < 0) continue;
        for (size_t row = 0; row < t->each; row += step)
            released_write_rows(c, t, first + row, t->each - row < step ? t->each - row : step, piece);
    }
    exf_mem_free(piece);
}

static inline void released_write_file(released_checkpoint *c, const char *path)
{
    exf_text header = {0};
    exf_tensor *views;
    size_t *order;
    exf_err e;
    ck_ok(exf_mem_new(&views, c->n, sizeof *views, "test", &e), e);
    ck_ok(exf_mem_new(&order, c->n, sizeof *order, "test", &e), e);
    for (size_t i = 0; i < c->n; i++) views[i] = c->t[i].view;
    ck_ok(exf_st_header(&header, order, path, views, c->n, NULL, 0, &e), e);
    uint64_t at = header.len;
    for (size_t i = 0; i < c->n; i++) {
        c->t[order[i]].offset = at;
        at += exf_tensor_bytes(&views[order[i]]);
    }
    c->fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    ck_assert_msg(c->fd >= 0 && ftruncate(c->fd, (off_t)at) == 0, "%s: cannot make a file of %llu bytes", path,
                  (unsigned long long)at);
    released_write_bytes(c, header.s, header.len, 0);
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(c->n, exf_default_threads()))
    for (size_t i = 0; i < c->n; i++) released_write_tensor(c, &c->t[i]);
    ck_assert_int_eq(close(c->fd), 0);
    exf_text_free(&header);
    exf_mem_free(views);
    exf_mem_free(order);
}

/* Writes DIRECTORY/model.safetensors for the config that lies there; c then says which experts are live. */
static inline void released_checkpoint_write(released_checkpoint *c, const char *directory)
{
    char path[512];
    exf_err e;
    memset(c, 0, sizeof *c);
    ck_ok(exf_model_open_part(&c->m, directory, EXF_MODEL_CONFIG, &e), e);
    released_routes_make(&c->to, &c->m->arch);
    for (int k = 0; k < 2; k++) {
        ck_ok(exf_mem_new(&c->codes[k], VALUES, 1, "test", &e), e);
        for (size_t i = 0; i < VALUES; i++) { /* FP8: magnitudes from 2^-3 to 1.875 */
            unsigned v = (unsigned)(exf_rng_u64(5, (uint64_t)k, i) >> 32);
            c->codes[k][i] = (unsigned char)(k == 0 ? (v & 0x80) | (4 + (v >> 3 & 3)) << 3 | (v & 7) : v);
        }
    }
    released_add_all(c);
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    released_write_file(c, path);
}

static inline void released_checkpoint_free(released_checkpoint *c)
{
    for (size_t i = 0; i < c->n; i++) exf_mem_free(c->t[i].name);
    for (int i = 0; i < EXPONENTS; i++) exf_mem_free(c->block[i]);
    for (int k = 0; k < 2; k++) exf_mem_free(c->codes[k]);
    exf_mem_free(c->t);
    released_routes_free(&c->to);
    exf_model_close(c->m);
}
#endif
