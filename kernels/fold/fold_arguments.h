/* fold_arguments.h - what the functions of exfold/fold.h do before they compute: options of any version and size are
 * read into this version's, with their defaults, and what contradicts itself or is beyond the limits is refused. */
#ifndef EXF_KERNELS_FOLD_ARGUMENTS_H
#define EXF_KERNELS_FOLD_ARGUMENTS_H
#include "kernels/fold/fold_internal.h"

/* ---- options of any version ------------------------------------------------------------- */

enum { EXF_FOLD_FIRST_SIZE = 64, EXF_FOLD_LARGEST_SIZE = 4096 }; /* of options: of API 1.1, and what no later one reaches */

/* Copies options from a caller's struct, whatever it knows, to ours of `size` bytes.  *first: what API 1.1 had in place of the
 * size, and then *sized is 0.  Members that only the caller knows must be 0, those that only we know become 0. */
static inline exf_fold_status exf_fold_read_options(void *ours, size_t size, const void *theirs, int *sized, int *first)
{
    const unsigned char *bytes = (const unsigned char *)theirs;
    uint32_t given;
    memcpy(&given, theirs, sizeof given);
    *sized = (given & EXF_FOLD_SIZE_BIT) != 0;
    *first = *sized ? 0 : (int)given;
    size_t n = *sized ? given & ~EXF_FOLD_SIZE_BIT : EXF_FOLD_FIRST_SIZE;
    if (n < EXF_FOLD_FIRST_SIZE || n > EXF_FOLD_LARGEST_SIZE) return EXF_FOLD_BAD_ARGUMENT;
    memset(ours, 0, size);
    memcpy(ours, theirs, n < size ? n : size);
    for (size_t i = size; i < n; i++)
        if (bytes[i]) return EXF_FOLD_UNSUPPORTED;
    return EXF_FOLD_OK;
}

/* Moves what API 1.1 had first into its member; returns 0 if both are given. */
static inline int exf_fold_move_first(int *member, int first)
{
    if (first && *member) return 0;
    *member |= first;
    return 1;
}

/* Settle a limit and a rho: with a size they are what they say. */
static inline float exf_fold_settled_limit(float given, int sized)
{
    return !sized ? exf_fold_max_loss(given) : given == EXF_FOLD_ZERO ? 0.0f : given;
}

static inline float exf_fold_settled_ridge(float given, int sized)
{
    return !sized ? exf_fold_ridge(given) : given == EXF_FOLD_ZERO ? 0.0f : given;
}

/* ---- arguments -------------------------------------------------------------------- */

static inline int exf_fold_all_zero(const int *reserved, size_t n)
{
    int any = 0;
    for (size_t i = 0; i < n; i++) any |= reserved[i];
    return any == 0;
}
#define EXF_FOLD_UNRESERVED(s) exf_fold_all_zero((s)->reserved, sizeof(s)->reserved / sizeof *(s)->reserved)

static inline int exf_fold_tables_known(const exf_fold_tables *t)
{
    int any = t->reserved_int != 0;
    for (size_t i = 0; i < sizeof t->reserved / sizeof *t->reserved; i++) any |= t->reserved[i] != NULL;
    return !any;
}

static inline exf_fold_status exf_fold_check_routes(const exf_fold_routes *r, int n_experts)
{
    if (!r || r->rows < 0 || r->width < 1 || (unsigned)r->id_type > EXF_FOLD_I64 || (unsigned)r->weight_type > EXF_FOLD_F16)
        return EXF_FOLD_BAD_ARGUMENT;
    if (r->rows > 0 && (!r->ids || !r->weights)) return EXF_FOLD_BAD_ARGUMENT;
    if (!EXF_FOLD_UNRESERVED(r)) return EXF_FOLD_UNSUPPORTED;
    if (n_experts < EXF_FOLD_MIN_E || n_experts > EXF_FOLD_MAX_E || r->width > EXF_FOLD_MAX_K) return EXF_FOLD_UNSUPPORTED;
    return r->width <= n_experts ? EXF_FOLD_OK : EXF_FOLD_BAD_ARGUMENT;
}

static inline int exf_fold_apart(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t i = (uintptr_t)a, j = (uintptr_t)b;
    return i < j ? j - i >= a_bytes : i - j >= b_bytes;
}

/* Returns 1 if n bytes at p, which may be NULL, overlap neither the ids nor the weights of r. */
static inline int exf_fold_apart_from(const exf_fold_routes *r, const void *p, size_t n)
{
    size_t slots = (size_t)r->rows * (size_t)r->width, id = r->id_type == EXF_FOLD_I32 ? 4 : 8;
    size_t weight = r->weight_type == EXF_FOLD_F32 ? 4 : 2;
    return !p || (exf_fold_apart(p, n, r->ids, slots * id) && exf_fold_apart(p, n, r->weights, slots * weight));
}

/* Returns 1 if what says which rows are padding, and what norms routes have, overlaps nothing of `written`. */
static inline int exf_fold_read_apart(const exf_fold_routes *r, const exf_fold_routes *written)
{
    size_t rows = (size_t)r->rows;
    return exf_fold_apart_from(written, r->count, sizeof *r->count) && exf_fold_apart_from(written, r->mask, rows) &&
           exf_fold_apart_from(written, r->norms, rows * (size_t)r->width * sizeof *r->norms);
}

/* Returns 1 if the output of a prefill fits its input: as many rows, of the same types, the same padding, nothing shared. */
static inline int exf_fold_fit(const exf_fold_routes *in, const exf_fold_routes *out)
{
    if (out->rows != in->rows || out->id_type != in->id_type || out->weight_type != in->weight_type) return 0;
    if ((out->count && out->count != in->count) || (out->mask && out->mask != in->mask) || out->norms) return 0;
    size_t slots = (size_t)in->rows * (size_t)in->width, id = in->id_type == EXF_FOLD_I32 ? 4 : 8;
    size_t weight = in->weight_type == EXF_FOLD_F32 ? 4 : 2;
    return in->rows == 0 || (exf_fold_apart_from(out, in->ids, slots * id) &&
                             exf_fold_apart_from(out, in->weights, slots * weight) && exf_fold_read_apart(in, out));
}

/* Returns 1 if the tables or the number that a form uses are missing or wrong: the limit of pair forms, rho of joint ones, which
 * read norms of G unless the routes have their own. */
static inline int exf_fold_bad_numbers(const exf_fold_tables *t, float max_loss, float ridge, int joint, int normed)
{
    if (joint) return !t->cosine || (!exf_fold_gram_norms(t) && !normed) || !(ridge >= 0) || !(ridge <= EXF_FOLD_NEVER);
    return !t->coeff || !t->loss || !(max_loss >= 0);
}

/* Returns 1 if there is what a slot's term of importance is made of. */
static inline int exf_fold_has_scales(const exf_fold_routes *io, const exf_fold_tables *t, exf_fold_importance kind)
{
    return kind == EXF_FOLD_IMPORTANCE_SCORE || io->norms || exf_fold_scales(t, kind);
}

/* The checks below write the options with their defaults filled in to *settled if all is well; it has a size. */

static inline exf_fold_status exf_fold_check_prefill(exf_fold_prefill_options *settled, const exf_fold_routes *in,
                                                     const exf_fold_routes *out, const exf_fold_tables *t,
                                                     const exf_fold_prefill_options *given, int joint)
{
    int sized, first;
    if (!t || !given || !out) return EXF_FOLD_BAD_ARGUMENT;
    exf_fold_status s = exf_fold_check_routes(in, t->n_experts);
    if (s == EXF_FOLD_OK) s = exf_fold_check_routes(out, t->n_experts);
    exf_fold_prefill_options *o = settled;
    if (s == EXF_FOLD_OK) s = exf_fold_read_options(o, sizeof *o, given, &sized, &first);
    if (s != EXF_FOLD_OK) return s;
    if (!EXF_FOLD_UNRESERVED(o) || !exf_fold_tables_known(t) || !exf_fold_move_first(&o->keep, first)) return EXF_FOLD_UNSUPPORTED;
    o->size = EXF_FOLD_SIZED(exf_fold_prefill_options);
    o->keep = o->keep ? o->keep : out->width;
    o->max_loss = exf_fold_settled_limit(o->max_loss, sized);
    o->ridge = exf_fold_settled_ridge(o->ridge, sized);
    if (!sized && o->repeat) return EXF_FOLD_UNSUPPORTED;
    int wrong = !exf_fold_fit(in, out) || o->keep < 1 || o->keep > out->width || out->width > in->width;
    wrong |= (unsigned)o->repeat > 1;
    wrong |= (unsigned)o->rank > EXF_FOLD_BY_NORM || (unsigned)o->rescale > EXF_FOLD_RESCALE_L2 || (unsigned)o->confidence > 1;
    wrong |= o->rank != EXF_FOLD_BY_SCORE && !t->norms && !in->norms;
    wrong |= exf_fold_bad_numbers(t, o->max_loss, o->ridge, joint, in->norms != NULL);
    return wrong ? EXF_FOLD_BAD_ARGUMENT : EXF_FOLD_OK;
}

static inline exf_fold_status exf_fold_check_budget(exf_fold_budget_options *settled, const exf_fold_routes *in,
                                                    const exf_fold_routes *out, const int32_t *kept, const exf_fold_tables *t,
                                                    const exf_fold_budget_options *given)
{
    int sized, first, rule;
    if (!t || !given || !out) return EXF_FOLD_BAD_ARGUMENT;
    exf_fold_status s = exf_fold_check_routes(in, t->n_experts);
    if (s == EXF_FOLD_OK) s = exf_fold_check_routes(out, t->n_experts);
    exf_fold_budget_options *o = settled;
    if (s == EXF_FOLD_OK) s = exf_fold_read_options(o, sizeof *o, given, &sized, &first);
    if (s != EXF_FOLD_OK) return s;
    rule = (int)o->rule;
    if (!EXF_FOLD_UNRESERVED(o) || !exf_fold_tables_known(t) || !exf_fold_move_first(&rule, first)) return EXF_FOLD_UNSUPPORTED;
    o->size = EXF_FOLD_SIZED(exf_fold_budget_options);
    o->rule = (exf_fold_budget_rule)rule;
    o->least = o->least ? o->least : 1;
    o->most = o->most ? o->most : out->width;
    o->ridge = exf_fold_settled_ridge(o->ridge, sized);
    if (!sized && (o->factor != 0 || o->padding)) return EXF_FOLD_UNSUPPORTED;
    if (!(o->factor >= 0) || !(o->factor <= EXF_FOLD_NEVER)) return EXF_FOLD_BAD_ARGUMENT;
    double penalty = o->factor > 0 ? o->penalty / ((double)o->factor * o->factor) : o->penalty; /* for the weights as they are */
    int wrong = !exf_fold_fit(in, out);
    wrong |= out->width > in->width || o->least < 1 || o->least > o->most || o->most > out->width;
    wrong |= (unsigned)o->rule > EXF_FOLD_BUDGET_TOP_P || (unsigned)o->repeat > 1 || (unsigned)o->padding > 1;
    wrong |= o->rule == EXF_FOLD_BUDGET_TOKEN && (!(penalty >= 0) || !(penalty <= EXF_FOLD_NEVER));
    o->penalty = wrong ? 0 : (float)penalty;
    wrong |= o->rule == EXF_FOLD_BUDGET_TOP_P && (!(o->share > 0) || !(o->share <= 1));
    wrong |= exf_fold_bad_numbers(t, 0, o->ridge, 1, in->norms != NULL) || (!t->rms && !in->norms);
    if (wrong || !kept || in->rows == 0) return wrong ? EXF_FOLD_BAD_ARGUMENT : EXF_FOLD_OK;
    size_t counts = (size_t)in->rows * sizeof *kept, norms = (size_t)in->rows * (size_t)in->width * sizeof *in->norms;
    wrong = !exf_fold_apart_from(in, kept, counts) || !exf_fold_apart_from(out, kept, counts);
    wrong |= in->norms && !exf_fold_apart(kept, counts, in->norms, norms);
    return wrong ? EXF_FOLD_BAD_ARGUMENT : EXF_FOLD_OK;
}

static inline exf_fold_status exf_fold_check_decode(exf_fold_decode_options *settled, const exf_fold_routes *io,
                                                    const exf_fold_tables *t, const exf_fold_decode_options *given, int joint)
{
    int sized, first;
    if (!t || !given) return EXF_FOLD_BAD_ARGUMENT;
    exf_fold_status s = exf_fold_check_routes(io, t->n_experts);
    exf_fold_decode_options *o = settled;
    if (s == EXF_FOLD_OK) s = exf_fold_read_options(o, sizeof *o, given, &sized, &first);
    if (s != EXF_FOLD_OK) return s;
    if (!EXF_FOLD_UNRESERVED(o) || !exf_fold_tables_known(t) || !exf_fold_move_first(&o->pool, first) || (!sized && o->members))
        return EXF_FOLD_UNSUPPORTED;
    o->size = EXF_FOLD_SIZED(exf_fold_decode_options);
    o->max_loss = exf_fold_settled_limit(o->max_loss, sized);
    o->ridge = exf_fold_settled_ridge(o->ridge, sized);
    int wrong = o->pool < 1 || (unsigned)o->importance > EXF_FOLD_IMPORTANCE_SCORE || (unsigned)o->drop > 1;
    wrong |= (unsigned)o->fallback > 1 || (unsigned)o->candidates > EXF_FOLD_POOL_OF_POSITIVE;
    wrong |= o->members ? o->pool > t->n_experts : !exf_fold_has_scales(io, t, o->importance);
    wrong |= exf_fold_bad_numbers(t, o->max_loss, o->ridge, joint, 0);
    wrong |= io->rows > 0 && !exf_fold_read_apart(io, io);
    if (wrong) return EXF_FOLD_BAD_ARGUMENT;
    if ((joint && o->fallback) || ((joint || o->members) && o->candidates)) return EXF_FOLD_UNSUPPORTED;
    return io->rows > EXF_FOLD_MAX_SLOTS / io->width ? EXF_FOLD_UNSUPPORTED : EXF_FOLD_OK;
}

static inline exf_fold_status exf_fold_check_stand_ins(exf_fold_stand_in_options *settled, const exf_fold_routes *io,
                                                       const exf_fold_scores *scores, const int32_t *members,
                                                       const exf_fold_tables *t, const exf_fold_stand_in_options *given)
{
    int sized, first;
    if (!t || !given || !scores) return EXF_FOLD_BAD_ARGUMENT;
    exf_fold_status s = exf_fold_check_routes(io, t->n_experts);
    exf_fold_stand_in_options *o = settled;
    if (s == EXF_FOLD_OK) s = exf_fold_read_options(o, sizeof *o, given, &sized, &first);
    if (s != EXF_FOLD_OK) return s;
    if (!EXF_FOLD_UNRESERVED(o) || !EXF_FOLD_UNRESERVED(scores) || !exf_fold_tables_known(t) ||
        !exf_fold_move_first(&o->pool, first))
        return EXF_FOLD_UNSUPPORTED;
    o->size = EXF_FOLD_SIZED(exf_fold_stand_in_options);
    o->ridge = exf_fold_settled_ridge(o->ridge, sized);
    int wrong = o->pool < 1 || (members && o->pool > t->n_experts) || (unsigned)o->weights > EXF_FOLD_STAND_INS_GATE;
    wrong |= (unsigned)o->importance > EXF_FOLD_IMPORTANCE_SCORE || (unsigned)scores->type > EXF_FOLD_F16;
    wrong |= io->rows > 0 && (!scores->choice || !exf_fold_read_apart(io, io));
    wrong |= !members && !exf_fold_has_scales(io, t, o->importance);
    wrong |= o->weights == EXF_FOLD_STAND_INS_JOINT && exf_fold_bad_numbers(t, 0, o->ridge, 1, 0);
    if (wrong) return EXF_FOLD_BAD_ARGUMENT;
    return !members && io->rows > EXF_FOLD_MAX_SLOTS / io->width ? EXF_FOLD_UNSUPPORTED : EXF_FOLD_OK;
}

static inline exf_fold_status exf_fold_check_static(const exf_fold_routes *io, const int32_t *target_ids,
                                                    const float *target_scale, int n_experts)
{
    exf_fold_status status = exf_fold_check_routes(io, n_experts);
    if (status != EXF_FOLD_OK) return status;
    if (!target_ids || !target_scale) return EXF_FOLD_BAD_ARGUMENT;
    return io->rows > 0 && !exf_fold_read_apart(io, io) ? EXF_FOLD_BAD_ARGUMENT : EXF_FOLD_OK;
}
#endif
