/* check_host_loader.c - src/weights/weight_loader_host: a process gets the float32 of each tensor, of every family and number
 * format; ranks on CPUs that read together get what one gets alone, and read each byte once.  Ranks are threads here, each
 * with a model of its own. */
#include "weights/weight_loader.h"
#include "tests/support/fixtures.h"
#include "tests/support/golden_run.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MEMBERS = 3, SLOTS = 3 };

typedef struct {
    golden_case c;
    exf_shared_memory memory;
    int first_layer;
    exf_text bytes, identity; /* all weights, in order; the digests of what was read */
    uint64_t read;
    exf_code rc;
    exf_err err;
} member;

static void keep_layer(member *m, const exf_layer_weights *lw, int layer)
{
    for (int role = 0; role < EXF_W_COUNT; role++) {
        size_t n = (size_t)exf_model_copies(m->c.model, (exf_role)role, layer) * exf_model_count(m->c.model, (exf_role)role, layer);
        if ((layer < 0) != (role < EXF_W_FIRST_IN_LAYER) || role == EXF_W_EMBED) continue;
        ck_assert_msg((n > 0) == (lw->w[role] != NULL), "layer %d, role %d", layer, role);
        if (n) exf_text_append(&m->bytes, (const char *)lw->w[role], n * sizeof(float));
    }
}

static exf_code load_embedding(member *m, exf_host_loader *s, exf_err *err)
{
    size_t n = exf_model_count(m->c.model, EXF_W_EMBED, -1);
    float *table = malloc(n * sizeof *table);
    exf_code rc = exf_host_loader_embedding(s, table, 2, err);
    if (rc == EXF_OK) exf_text_append(&m->bytes, (const char *)table, n * sizeof *table);
    free(table);
    return rc;
}

static exf_code load_all(member *m, exf_host_loader *s, exf_err *err)
{
    exf_layer_weights lw = {.b = &exf_backend_cpu};
    int n = m->c.model->arch.n_layers;
    exf_code rc = m->first_layer ? EXF_OK : load_embedding(m, s, err);
    for (int l = m->first_layer; rc == EXF_OK && l <= n; l++) {
        int layer = l < n ? l : -1;
        rc = exf_host_loader_layer(s, &lw, 2, err);
        if (rc == EXF_OK) keep_layer(m, &lw, layer);
    }
    exf_layer_weights_free(&lw);
    return rc == EXF_OK ? exf_text_end(&m->bytes, err) : rc;
}

/* Reads what load_all() does, a whole tensor at a time. */
static void read_tensors(member *m)
{
    const exf_model *model = m->c.model;
    int n = model->arch.n_layers;
    exf_err e;
    for (int l = m->first_layer ? m->first_layer : -1; l <= n; l++) { /* -1: the embedding; n: the head */
        int layer = l < n ? l : -1, first = layer < 0 ? 0 : EXF_W_FIRST_IN_LAYER;
        for (int role = first; role < (layer < 0 ? EXF_W_FIRST_IN_LAYER : EXF_W_COUNT); role++) {
            size_t each = exf_model_count(model, (exf_role)role, layer);
            float *values = malloc((each + 1) * sizeof *values);
            int copies = layer < 0 && (role == EXF_W_EMBED) != (l < 0) ? 0 : exf_model_copies(model, (exf_role)role, layer);
            for (int i = 0; i < copies; i++) {
                ck_ok(exf_model_read(model, (exf_role)role, layer, i, values, &e), e);
                exf_text_append(&m->bytes, (const char *)values, each * sizeof *values);
            }
            free(values);
        }
    }
    ck_ok(exf_text_end(&m->bytes, &e), e);
}

static exf_code keep_identity(member *m, exf_err *err)
{
    exf_code rc;
    for (int part = 0; part < EXF_PART_LAYERS + 2 * m->c.model->arch.n_layers; part++)
        EXF_TRY(exf_weight_identity_settle(m->c.model->identity, part, err));
    EXF_TRY(exf_weight_identity_list(m->c.model->identity, 0, &m->identity, err));
out:
    return rc;
}

static void *run(void *self)
{
    member *m = self;
    exf_shared_chunks *shared = NULL;
    exf_host_loader *s = NULL;
    exf_err *err = &m->err;
    exf_weight_loader_options o = {.first_layer = m->first_layer, .n_layers = m->c.model->arch.n_layers, .head = 1};
    exf_code rc = EXF_OK;
    if (m->memory.memory) {
        EXF_TRY(exf_shared_chunks_open(&shared, &m->memory, &exf_backend_cpu, err));
        o.shared = shared;
    }
    EXF_TRY(exf_host_loader_open(&s, m->c.model, &o, err));
    EXF_TRY(load_all(m, s, err));
    m->read = exf_host_loader_bytes(s);
    EXF_TRY(keep_identity(m, err));
out:
    exf_host_loader_close(s);
    exf_shared_chunks_close(shared);
    m->rc = rc;
    return NULL;
}

static void member_open(member *m, const char *family, void *memory, int number)
{
    *m = (member){.memory = {.memory = memory, .slots = SLOTS, .member = number, .members = MEMBERS, .files = "the same"}};
    golden_open(&m->c, family);
}

static void member_close(member *m)
{
    exf_text_free(&m->bytes);
    exf_text_free(&m->identity);
    golden_close(&m->c);
}

/* Runs a process alone and, over one memory, all members; returns what the members read together. */
static uint64_t run_all(member *alone, member m[MEMBERS])
{
    pthread_t thread[MEMBERS];
    uint64_t bytes = 0;
    run(alone);
    ck_assert_msg(alone->rc == EXF_OK, "%s", alone->err.msg);
    for (int i = 0; i < MEMBERS; i++) ck_assert_int_eq(pthread_create(&thread[i], NULL, run, &m[i]), 0);
    for (int i = 0; i < MEMBERS; i++) {
        pthread_join(thread[i], NULL);
        ck_assert_msg(m[i].rc == EXF_OK, "%s", m[i].err.msg);
        bytes += m[i].read;
    }
    return bytes;
}

static void *shared_memory(void)
{
    size_t n = (exf_shared_chunks_bytes(SLOTS) + 4095) / 4096 * 4096;
    void *memory = aligned_alloc(4096, n);
    memset(memory, 0, n);
    return memory;
}

/* Returns the bytes of all chunks of a pass. */
static uint64_t chunk_bytes(const member *m)
{
    exf_weight_schedule t = {.n = 0};
    exf_weight_loader_options o = {.n_slots = 1, .first_layer = m->first_layer, .n_layers = m->c.model->arch.n_layers, .head = 1};
    uint64_t bytes = 0;
    exf_err e;
    ck_ok(exf_weight_schedule_make(&t, m->c.model, EXF_COMPUTE_F32, &o, &e), e);
    for (size_t i = 0; i < t.n; i++)
        for (size_t k = 0; k < t.plan[t.load[i].plan].n; k++) {
            const exf_weight_chunk *c = &t.plan[t.load[i].plan].chunk[k];
            for (int kind = 0; kind < EXF_STORED_KINDS; kind++) bytes += exf_chunk_stored_bytes(c, (exf_stored_kind)kind);
        }
    exf_weight_schedule_free(&t);
    return bytes;
}

static void ck_same(const member *a, const member *b)
{
    ck_assert_uint_eq(a->bytes.len, b->bytes.len);
    ck_assert_mem_eq(a->bytes.s, b->bytes.s, a->bytes.len);
    ck_assert_str_eq(a->identity.s, b->identity.s);
}

static void check_members(const char *family, int first_layer, int other_files)
{
    member alone, m[MEMBERS];
    void *memory = shared_memory();
    member_open(&alone, family, NULL, 0);
    alone.first_layer = first_layer;
    for (int i = 0; i < MEMBERS; i++) {
        member_open(&m[i], family, memory, i);
        m[i].first_layer = first_layer;
        if (other_files) m[i].memory.files[0] = (char)('a' + i);
    }
    uint64_t bytes = run_all(&alone, m);
    ck_assert_uint_gt(bytes, 0);
    ck_assert_uint_eq(alone.read, chunk_bytes(&alone));
    ck_assert_uint_eq(bytes, chunk_bytes(&alone) * (other_files ? MEMBERS : 1));
    for (int i = 0; i < MEMBERS; i++) {
        ck_same(&alone, &m[i]);
        member_close(&m[i]);
    }
    member_close(&alone);
    free(memory);
}

START_TEST(a_process_reads_whole_tensors)
{
    for (int first = 0; first < 2; first++) {
        member tensors, loader;
        exf_err e;
        member_open(&tensors, golden_families[_i], NULL, 0);
        member_open(&loader, golden_families[_i], NULL, 0);
        tensors.first_layer = loader.first_layer = first;
        read_tensors(&tensors);
        ck_ok(keep_identity(&tensors, &e), e);
        run(&loader);
        ck_assert_msg(loader.rc == EXF_OK, "%s", loader.err.msg);
        ck_same(&tensors, &loader);
        member_close(&tensors);
        member_close(&loader);
    }
}
END_TEST

START_TEST(ranks_read_together_what_one_reads)
{
    check_members(golden_families[_i], 0, 0);
}
END_TEST

START_TEST(a_pass_that_goes_on_reads_its_own_layers)
{
    check_members("qwen3_moe", 1, 0);
}
END_TEST

START_TEST(ranks_of_other_files_read_for_themselves)
{
    check_members("qwen3_moe", 0, 1);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, a_process_reads_whole_tensors, 0, golden_n_families());
    tcase_add_loop_test(t, ranks_read_together_what_one_reads, 0, golden_n_families());
    tcase_add_test(t, a_pass_that_goes_on_reads_its_own_layers);
    tcase_add_test(t, ranks_of_other_files_read_for_themselves);
}
