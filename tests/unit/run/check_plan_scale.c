/* check_plan_scale.c - predictions for ranks and nodes, beside times added up by hand. */
#include "tests/support/fake_device.h"
#include "tests/support/fixtures.h"

#include "pass/batch.h"
#include "run/plan.h"

#include <math.h>

enum { N = 16, LENGTH = 100 };

static exf_err e; /* of the last call */

static exf_text_list list_of(char **items, size_t n)
{
    return (exf_text_list){.item = items, .n = n};
}

/* Seconds of the run that no rank shares: its start; by which ranks start later, and those on further GPUs. */
static const double alone = 3, mpi = 1.9, gpus = 0.18;
/* What the shorter of the tokens' work and of sums and files beside it takes from the longer one. */
static const double disturbed = 0.3;

static uint64_t written, others; /* bytes of statistics, and of files after the pass */
static uint64_t shared;          /* bytes of sums that GPUs of one host add up among themselves */

/* A run of 16 equal sequences: 100 s of tokens' work, 10 of weights, 1 of opening, 2 of layers' ends; 4 layers that
 * have 0.7 GB of sums together. */
static exf_scale predict(const exf_backend *b, int ranks, int nodes, int measured, exf_text_list rates)
{
    static exf_span span[N];
    static exf_model m;
    for (size_t i = 0; i < N; i++) span[i] = (exf_span){i * LENGTH, LENGTH};
    exf_batch batch = {NULL, span, N, N * LENGTH, LENGTH};
    m.arch.n_layers = 4;
    exf_plan p = {.model = &m, .batch = &batch, .options = {.backend = b}, .flops = 4e15, .weight_bytes = 200000000000,
                  .reduced = 700000000, .by_gpus = shared, .statistics = written, .disk = written + others, .seconds = 40,
                  .measured = measured};
    exf_recipe r = {.plan_ranks = ranks, .plan_nodes = nodes, .plan_rates = rates, .dry_run = 1};
    exf_scale s;
    if (measured) p.part.once = 1, p.part.tokens = 100, p.part.weights = 10, p.part.ends = 2;
    if (measured) p.part.start = 3;
    ck_ok(exf_scale_check(&r, &e), e);
    ck_ok(exf_scale_predict(&s, &p, &r, &e), e);
    return s;
}

static void ck_seconds(double got, double want)
{
    ck_assert_msg(fabs(got - want) <= 1e-9 * want, "%.12g s, expected %.12g", got, want);
}

static const exf_text_list none;

START_TEST(tokens_divide_and_weights_do_not)
{
    const exf_backend *gpu = fake_device(1 << 20);
    ck_seconds(predict(gpu, 1, 1, 1, none).seconds, alone + 1 + 100 + 2);
    /* twice three quarters of 0.7 GB at 2.8 GB/s are beside the work, but for the last of four layers */
    exf_scale four = predict(gpu, 4, 1, 1, none);
    ck_seconds(four.sums, 0.375);
    ck_seconds(four.start, alone + mpi + 3 * gpus);
    ck_seconds(four.seconds, alone + mpi + 3 * gpus + 1 + 25 + disturbed * 0.375 + 2 + 0.375 / 4);
    /* from 16 on the weights, read once on each node, are all that a rank waits for */
    exf_scale sixteen = predict(gpu, 16, 1, 1, none);
    ck_seconds(sixteen.tokens, 6.25);
    double sums = 2 * 15. / 16 * 0.25;
    ck_seconds(sixteen.seconds, alone + mpi + 15 * gpus + 1 + 10 + disturbed * sums + 2 + sums / 4);
    ck_assert_int_eq(sixteen.assumed_network, 1);
    /* four nodes of four: 2 3 / 4 of the sums over the network */
    exf_scale nodes = predict(gpu, 16, 4, 1, none);
    ck_seconds(nodes.sums, 0.375 + 1.5 * 0.7 / 12.5);
    ck_seconds(nodes.start, four.start);
}
END_TEST

/* What GPUs of one host add up among themselves takes no time; over nodes, and on processors, it does. */
START_TEST(gpus_of_a_host_add_up_their_own)
{
    shared = 420000000; /* of 0.7 GB */
    exf_scale host = predict(fake_device(1 << 20), 4, 1, 1, none), nodes = predict(fake_device(1 << 20), 16, 4, 1, none);
    exf_scale processors = predict(&exf_backend_cpu, 4, 1, 1, none);
    shared = 0;
    ck_seconds(host.sums, 1.5 * 0.28 / 2.8);
    ck_seconds(nodes.sums, 0.375 + 1.5 * 0.7 / 12.5);
    ck_seconds(processors.sums, 0.375);
}
END_TEST

/* Ranks of one node share its cores; weights are not read beside the work. */
START_TEST(ranks_on_processors_divide_by_nodes)
{
    ck_seconds(predict(&exf_backend_cpu, 1, 1, 1, none).seconds, alone + 1 + 100 + 10 + 2);
    ck_seconds(predict(&exf_backend_cpu, 4, 1, 1, none).seconds, alone + mpi + 1 + 100 + 10 + 2 + 0.375 / 4);
    ck_seconds(predict(&exf_backend_cpu, 4, 2, 1, none).tokens, 50);
}
END_TEST

START_TEST(the_fullest_rank_counts)
{
    exf_scale s = predict(fake_device(1 << 20), 5, 1, 1, none); /* 16 sequences: one rank has four of them */
    ck_seconds(s.most_tokens, 0.25);
    ck_seconds(s.tokens, 25);
}
END_TEST

START_TEST(given_rates_count)
{
    char compute[] = "compute=40T", read[] = "read=50G", copy[] = "copy=8G", network[] = "network=600M";
    char *items[] = {compute, read, copy, network};
    exf_scale s = predict(&exf_backend_cpu, 2, 2, 0, list_of(items, 4));
    ck_seconds(s.tokens, 50);
    ck_seconds(s.weights, 25);
    ck_seconds(s.sums, 0.7 / 0.6);
    ck_seconds(s.seconds, 50 + disturbed * 0.7 / 0.6 + 0.7 / 0.6 / 4);
    ck_assert_int_eq(s.assumed_network, 0);
    /* without weights the plan is a bound, and so is the prediction */
    ck_seconds(predict(fake_device(1 << 20), 4, 1, 0, none).tokens, 10);
}
END_TEST

/* Rank 0 adds a layer's sums up, then writes them, while the next layer runs; tables follow the pass. */
START_TEST(files_are_written_by_one_rank)
{
    char write[] = "write=100M", *item = write;
    const exf_backend *gpu = fake_device(1 << 20);
    written = 2500000000, others = 1250000000; /* bytes */
    exf_scale four = predict(gpu, 4, 1, 1, none), slow = predict(gpu, 4, 1, 1, list_of(&item, 1));
    exf_scale host = predict(&exf_backend_cpu, 1, 1, 1, none);
    written = others = 0;
    ck_seconds(four.statistics, 2);
    ck_seconds(four.files, 1);
    ck_assert_int_eq(four.assumed_write, 1);
    ck_seconds(four.seconds, alone + mpi + 3 * gpus + 1 + 25 + disturbed * 2 + 2 + 2.375 / 4 + 1);
    ck_assert_int_eq(slow.assumed_write, 0);
    ck_seconds(slow.seconds - slow.start, 1 + 25 + disturbed * 25 + 2 + (0.375 + 25) / 4 + 12.5);
    ck_seconds(host.seconds, alone + 1 + 100 + 10 + 2 + 2 + 1);
}
END_TEST

START_TEST(mistakes_are_refused)
{
    static const char *const bad[] = {"compute", "compute=", "compute=0", "compute=-1", "compute=1X", "compute=1GG",
                                      "speed=1", "copy=nan", "read=inf", "write=inf"};
    exf_recipe r = {.plan_nodes = 2, .dry_run = 1};
    exf_scale_rates rates;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *item = (char *)(uintptr_t)bad[i];
        exf_text_list one = list_of(&item, 1);
        ck_fails(exf_scale_rates_parse(&rates, &one, &e), EXF_USAGE, e, "compute=X");
    }
    ck_fails(exf_scale_check(&r, &e), EXF_USAGE, e, "--nodes ranks? --ranks");
    r.plan_ranks = 3;
    ck_fails(exf_scale_check(&r, &e), EXF_USAGE, e, "--ranks 3 2");
    r = (exf_recipe){.plan_ranks = 2};
    ck_fails(exf_scale_check(&r, &e), EXF_USAGE, e, "--ranks --dry-run");
}
END_TEST

/* ---- the sample of a run on a CPU ------------------------------------------------------------ */

/* Seconds that a fake pass takes for a token in a block of n tokens: its experts read their weights once for each block. */
static double seconds_of_token(int n)
{
    return 1e-4 * (1 + 200.0 / n);
}

/* Runs a sample as a CPU does: block by block, each sequence alone. */
static exf_code run_fake(void *self, const exf_batch *batch, const exf_forward_options *options, exf_forward_report *report,
                         exf_err *err)
{
    const exf_plan *p = self;
    (void)options;
    (void)err;
    *report = (exf_forward_report){.workers = p->workers};
    for (size_t i = 0; i < batch->n_sequences; i++)
        for (int at = 0; at < batch->span[i].n_tokens; at += EXF_MOE_BLOCK) {
            int left = batch->span[i].n_tokens - at, n = left < EXF_MOE_BLOCK ? left : EXF_MOE_BLOCK;
            report->work.kind[EXF_WORK_EXPERTS].done += n;
            report->work.kind[EXF_WORK_EXPERTS].spent += n * seconds_of_token(n) / p->workers;
        }
    return EXF_OK;
}

/* Plans 12 layers of n sequences on two workers; so many operations that a sample of some tenths of a second has few tokens. */
static double planned_seconds(int n, int length)
{
    static exf_span span[64];
    static exf_model m;
    exf_eta work = {.now = 0};
    for (int i = 0; i < n; i++) span[i] = (exf_span){(size_t)i * (size_t)length, length};
    exf_batch batch = {NULL, span, (size_t)n, (size_t)n * (size_t)length, length};
    m.arch.n_layers = 12;
    m.arch.vocab = 1000;
    work.kind[EXF_WORK_EXPERTS] = (exf_eta_kind){.planned = 12.0 * n * length, .prior = 1e-4};
    exf_plan p = {.model = &m, .batch = &batch, .options = {.backend = &exf_backend_cpu}, .workers = 2, .work = work,
                  .flops = 12.0 * n * length * 1e9};
    ck_ok(exf_plan_measure(&p, run_fake, &p, &e), e);
    ck_assert_int_eq(p.measured, 1);
    return p.seconds;
}

/* A sample's blocks are as long as the run's, however many operations a token is: a sweep of many lanes is planned right. */
START_TEST(blocks_of_a_sample_are_the_runs)
{
    static const int length[] = {100, 384, 1024, 2048};
    for (size_t k = 0; k < sizeof length / sizeof *length; k++) {
        int block = length[k] < EXF_MOE_BLOCK ? length[k] : EXF_MOE_BLOCK;
        ck_seconds(planned_seconds(48, length[k]), 12.0 * 48 * length[k] * seconds_of_token(block) / 2);
    }
}
END_TEST

/* A sweep with a limit runs all lanes on a part of the sequences first: that is in its time, and the rest is all of it at most. */
START_TEST(a_pilot_is_in_the_time)
{
    static exf_model m;
    exf_plan p = {.model = &m, .pilot = {.sequences = 16, .share = 0.25}, .seconds = 108, .measured = 1};
    p.part.tokens = 100, p.part.weights = 5, p.part.ends = 1, p.part.start = 2;
    exf_plan_add_pilot(&p);
    ck_seconds(p.part.pilot, 25 + 5 + 1);
    ck_seconds(p.seconds, 108 + 31);
    p = (exf_plan){.model = &m, .seconds = 108, .measured = 1};
    exf_plan_add_pilot(&p);
    ck_seconds(p.seconds, 108);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, tokens_divide_and_weights_do_not);
    tcase_add_test(t, gpus_of_a_host_add_up_their_own);
    tcase_add_test(t, ranks_on_processors_divide_by_nodes);
    tcase_add_test(t, the_fullest_rank_counts);
    tcase_add_test(t, given_rates_count);
    tcase_add_test(t, files_are_written_by_one_rank);
    tcase_add_test(t, mistakes_are_refused);
    tcase_add_test(t, blocks_of_a_sample_are_the_runs);
    tcase_add_test(t, a_pilot_is_in_the_time);
}
