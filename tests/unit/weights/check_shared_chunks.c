/* check_shared_chunks.c - src/weights/shared_chunks: members that share a ring of chunks load what each would load alone,
 * and read it once.  Members are threads here, each with a model and a loader of its own, as ranks have. */
#include "weights/weight_loader.h"
#include "tests/support/fake_device.h"
#include "tests/support/fixtures.h"
#include "tests/support/golden_run.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MEMBERS = 3, SLOTS = 5 };
static const uint64_t plenty = (uint64_t)1 << 40;

typedef struct {
    const exf_backend *b;
    golden_case c;
    exf_shared_memory memory;
    exf_weight_loader_options o;
    int lazy;        /* 1: computes long between two loads */
    int loadings;    /* loads all layers so many times */
    exf_text bytes;  /* of all weights, as they came to the "device" */
    exf_text identity;
    exf_weight_loader_times times;
    exf_code rc;
    exf_err err;
} member;

/* Appends a layer's weights. */
static void keep(member *m, const exf_layer_weights *lw, int layer)
{
    for (int role = layer < 0 ? 0 : EXF_W_FIRST_IN_LAYER; role < (layer < 0 ? EXF_W_FIRST_IN_LAYER : EXF_W_COUNT); role++) {
        int of = layer < 0 ? -1 : layer, n = exf_model_copies(m->c.model, (exf_role)role, of);
        exf_matrix x = exf_matrix_of(lw, (exf_role)role);
        if (n == 0 || !x.p || (layer < 0 && (layer == EXF_LAYER_EMBED) != (role == EXF_W_EMBED))) continue;
        size_t bytes = (size_t)n * exf_model_count(m->c.model, (exf_role)role, of) * exf_number_bytes(x.number);
        exf_text_append(&m->bytes, (const char *)x.p, bytes);
    }
}

static exf_code load_all(member *m, exf_shared_chunks *shared, exf_err *err)
{
    exf_weight_loader *s = NULL;
    exf_layer_weights lw = {.b = m->b};
    exf_code rc;
    int n = m->c.model->arch.n_layers;
    m->o.shared = shared;
    EXF_TRY(exf_weight_loader_open(&s, m->c.model, m->b, EXF_COMPUTE_F32, &m->o, err));
    for (int i = 0; i < n + 2; i++) {
        int layer = i == 0 ? EXF_LAYER_EMBED : i <= n ? i - 1 : EXF_LAYER_HEAD;
        EXF_TRY(exf_weight_loader_next(s, &lw, err));
        keep(m, &lw, layer);
        if (m->lazy) nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    }
    rc = exf_text_end(&m->bytes, err);
out:
    exf_weight_loader_close(s, &m->times);
    return rc;
}

static void *run(void *self)
{
    member *m = self;
    exf_shared_chunks *shared = NULL;
    exf_err *err = &m->err;
    exf_code rc = EXF_OK;
    if (m->memory.memory) EXF_TRY(exf_shared_chunks_open(&shared, &m->memory, m->b, err));
    for (int i = 0; i < m->loadings; i++) EXF_TRY(load_all(m, shared, err));
    for (int part = 0; part < EXF_PART_LAYERS + 2 * m->c.model->arch.n_layers; part++)
        EXF_TRY(exf_weight_identity_settle(m->c.model->identity, part, err));
    EXF_TRY(exf_weight_identity_list(m->c.model->identity, 0, &m->identity, err));
out:
    exf_shared_chunks_close(shared);
    m->rc = rc;
    return NULL;
}

static void member_open(member *m, const char *family, void *memory, int number)
{
    *m = (member){.b = fake_device(plenty), .loadings = 1,
                  .memory = {.memory = memory, .slots = SLOTS, .member = number, .members = MEMBERS, .files = "the same"}};
    golden_open(&m->c, family);
    m->o = (exf_weight_loader_options){.n_slots = 2, .n_readers = 2 + number, .n_layers = m->c.model->arch.n_layers, .head = 1};
}

static void member_close(member *m)
{
    exf_text_free(&m->bytes);
    exf_text_free(&m->identity);
    golden_close(&m->c);
}

static void *shared_memory(void)
{
    void *memory = aligned_alloc(4096, (exf_shared_chunks_bytes(SLOTS) + 4095) / 4096 * 4096);
    memset(memory, 0, exf_shared_chunks_bytes(SLOTS));
    return memory;
}

static void run_members(member *m)
{
    pthread_t thread[MEMBERS];
    for (int i = 0; i < MEMBERS; i++) ck_assert_int_eq(pthread_create(&thread[i], NULL, run, &m[i]), 0);
    for (int i = 0; i < MEMBERS; i++) pthread_join(thread[i], NULL);
}

static void assert_equal(const member *a, const member *b)
{
    ck_assert_msg(b->rc == EXF_OK, "%s", b->err.msg);
    ck_assert_uint_eq(a->bytes.len, b->bytes.len);
    ck_assert_mem_eq(a->bytes.s, b->bytes.s, a->bytes.len);
    ck_assert_str_eq(a->identity.s, b->identity.s);
}

START_TEST(members_load_what_one_loads_and_read_it_once)
{
    member alone, m[MEMBERS];
    void *memory = shared_memory();
    uint64_t bytes = 0;
    member_open(&alone, golden_families[_i], NULL, 0);
    alone.loadings = 2;
    run(&alone);
    ck_assert_msg(alone.rc == EXF_OK, "%s", alone.err.msg);
    for (int i = 0; i < MEMBERS; i++) {
        member_open(&m[i], golden_families[_i], memory, i);
        m[i].loadings = 2;
        m[i].lazy = i == 1;
    }
    run_members(m);
    for (int i = 0; i < MEMBERS; i++) {
        assert_equal(&alone, &m[i]);
        bytes += m[i].times.bytes;
    }
    ck_assert_uint_gt(bytes, 0);
    ck_assert_uint_eq(bytes, alone.times.bytes);
    for (int i = 0; i < MEMBERS; i++) member_close(&m[i]);
    member_close(&alone);
    free(memory);
}
END_TEST

static exf_code gone(void *self, exf_err *err)
{
    (void)self;
    return exf_fail(err, EXF_IO, "rank 1 is gone");
}

/* Members whose memory makes them load otherwise read for themselves. */
START_TEST(other_plans_are_not_shared)
{
    member alone, m[MEMBERS];
    void *memory = shared_memory();
    member_open(&alone, "qwen3_moe", NULL, 0);
    run(&alone);
    for (int i = 0; i < MEMBERS; i++) member_open(&m[i], "qwen3_moe", memory, i);
    m[2].o.n_slots = 1;
    m[2].o.head = 0; /* load_all() fails there, in that member alone */
    run_members(m);
    for (int i = 0; i < 2; i++) {
        assert_equal(&alone, &m[i]);
        ck_assert_uint_eq(m[i].times.bytes, alone.times.bytes);
    }
    for (int i = 0; i < MEMBERS; i++) member_close(&m[i]);
    member_close(&alone);
    free(memory);
}
END_TEST

/* Nor do members share that have other files of the same names and sizes. */
START_TEST(other_files_are_not_shared)
{
    member alone, m[MEMBERS];
    void *memory = shared_memory();
    member_open(&alone, "qwen3_moe", NULL, 0);
    run(&alone);
    for (int i = 0; i < MEMBERS; i++) member_open(&m[i], "qwen3_moe", memory, i);
    strcpy(m[1].memory.files, "others");
    run_members(m);
    for (int i = 0; i < MEMBERS; i++) {
        assert_equal(&alone, &m[i]);
        ck_assert_uint_eq(m[i].times.bytes, alone.times.bytes);
        member_close(&m[i]);
    }
    member_close(&alone);
    free(memory);
}
END_TEST

/* A member that waits for one that is gone returns that failure. */
START_TEST(a_lost_member_ends_the_others)
{
    member m;
    void *memory = shared_memory();
    member_open(&m, "qwen3_moe", memory, 0);
    m.memory.check = gone;
    run(&m);
    ck_fails(m.rc, EXF_IO, m.err, "1");
    member_close(&m);
    free(memory);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "ring");
    tcase_add_loop_test(t, members_load_what_one_loads_and_read_it_once, 0, golden_n_families());
    tcase_add_test(t, other_plans_are_not_shared);
    tcase_add_test(t, other_files_are_not_shared);
    tcase_add_test(t, a_lost_member_ends_the_others);
}
