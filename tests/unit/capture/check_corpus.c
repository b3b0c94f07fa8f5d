/* check_corpus.c - from manifests to sequences: reading, cutting, choosing, refusing. */
#include "tests/support/corpus_fixtures.h"

#include "base/hash.h"
#include "base/mem.h"
#include "capture/manifest.h"


/* ---- tokens ---------------------------------------------------------- */

START_TEST(rows_are_cut_and_accounted)
{
    put_ids("ids.safetensors", "calib", 5, 11);
    exf_corpus_request q = ask(HEAD "  - path: ids.safetensors\n    format: tokens\n");
    exf_corpus *c = load(&q);
    ck_assert_uint_eq(c->n_sequences, 5);
    for (int32_t r = 0; r < 5; r++) {
        ids_equal(c, (size_t)r, (int32_t[]){r, r + 1, r + 2, r + 3, r + 4, r + 5, r + 6, r + 7}, 8);
        ck_assert_int_eq(c->sequence[r].row, r);
        ck_assert_int_eq(c->sequence[r].source, 0);
        ck_assert_int_eq(c->sequence[r].domain, 0);
    }
    ck_assert_uint_eq(c->n_tokens, 40);
    ck_assert_int_eq(c->max_tokens, 8);
    ck_assert_int_eq(c->n_unpinned, 1);
    ck_assert_str_eq(c->unpinned, "ids.safetensors");
    ck_assert_uint_eq(c->n_sources, 1);
    ck_assert_uint_eq(c->n_domains, 1);
    ck_assert_str_eq(c->domains[0].name, "source-1");
    ck_assert_uint_eq(c->domains[0].sequences_kept, 5);
    ck_assert_uint_eq(c->domains[0].sequences_dropped, 0);
    ck_assert_uint_eq(c->domains[0].tokens_kept, 40);
    ck_assert_uint_eq(c->domains[0].tokens_dropped, 15);
    exf_corpus_free(c);
}
END_TEST

/* Each file once, four by name, in the manifest's order and spelling. */
START_TEST(unpinned_sources_are_listed)
{
    static char file[8][2] = {"b", "a", "b", "p", "c", "d", "e", "f"};
    exf_manifest_source s[8] = {{.path = NULL}};
    exf_manifest m = {.n = 3, .source = s};
    for (int i = 0; i < 8; i++) s[i].path = file[i];
    s[3].sha256[0] = '0'; /* pinned */
    char *files;
    int n;
    ck_ok(exf_manifest_unpinned(&m, &files, &n, &e), e);
    ck_assert_int_eq(n, 3);
    ck_assert_str_eq(files, "b, a");
    exf_mem_free(files);
    m.n = 8;
    ck_ok(exf_manifest_unpinned(&m, &files, &n, &e), e);
    ck_assert_int_eq(n, 7);
    ck_assert_str_eq(files, "b, a, c, d, ...");
    exf_mem_free(files);
    m = (exf_manifest){.n = 1, .source = &s[3]};
    ck_ok(exf_manifest_unpinned(&m, &files, &n, &e), e);
    ck_assert_int_eq(n, 0);
    ck_assert_ptr_null(files);
}
END_TEST

START_TEST(every_integer_dtype_gives_the_same_ids)
{
    static const int8_t i8[] = {5, 0, 9, 100};
    static const int16_t i16[] = {5, 0, 9, 100};
    static const int32_t i32[] = {5, 0, 9, 100};
    static const int64_t i64[] = {5, 0, 9, 100};
    static const struct { exf_dtype dtype; const void *data; } kind[] = {
        {EXF_DT_I8, i8}, {EXF_DT_U8, i8}, {EXF_DT_I16, i16}, {EXF_DT_U16, i16},
        {EXF_DT_I32, i32}, {EXF_DT_U32, i32}, {EXF_DT_I64, i64}, {EXF_DT_U64, i64}};
    for (size_t i = 0; i < sizeof kind / sizeof kind[0]; i++) {
        exf_tensor t = {.name = "x", .dtype = kind[i].dtype, .rank = 2, .shape = {2, 2}, .data = kind[i].data};
        ck_ok(exf_st_write(exf_scratch("ids.safetensors"), 1, &t, 1, NULL, 0, NULL, &e), e);
        exf_corpus_request q = ask(HEAD "  - {path: ids.safetensors, format: tokens, tensor: x}\n");
        exf_corpus *c = load(&q);
        ck_assert_uint_eq(c->n_sequences, 2);
        ids_equal(c, 0, i32, 2);
        ids_equal(c, 1, i32 + 2, 2);
        exf_corpus_free(c);
    }
}
END_TEST

START_TEST(bad_tensors_are_refused)
{
    static const int32_t zeros[8] = {0};
    static const float reals[8] = {0};
    const exf_tensor t[] = {{.name = "calib.c", .dtype = EXF_DT_I32, .rank = 2, .shape = {2, 4}, .data = zeros},
                            {.name = "empty", .dtype = EXF_DT_I32, .rank = 2, .shape = {0, 4}, .data = zeros},
                            {.name = "flat", .dtype = EXF_DT_I32, .rank = 1, .shape = {8}, .data = zeros},
                            {.name = "real", .dtype = EXF_DT_F32, .rank = 2, .shape = {2, 4}, .data = reals},
                            {.name = "thin", .dtype = EXF_DT_I32, .rank = 2, .shape = {4, 0}, .data = zeros}};
    ck_ok(exf_st_write(exf_scratch("ids.safetensors"), 1, t, 5, NULL, 0, NULL, &e), e);
#define FROM(tensor) HEAD "  - {path: ids.safetensors, format: tokens, domain: d" tensor "}\n"
    refused_manifest(FROM(""), EXF_MODEL, "source 1 (ids.safetensors, domain \"d\"): the file has 5 tensors, \"tensor\" must name");
    refused_manifest(FROM(", tensor: calib.d"), EXF_MODEL,
                     "no tensor \"calib.d\"; the file's are \"calib.c\", \"empty\", \"flat\", \"real\", \"thin\"");
    refused_manifest(FROM(", tensor: something"), EXF_MODEL, "no tensor \"something\"; the file's are \"calib.c\",");
    refused_manifest(FROM(", tensor: empty"), EXF_MODEL, "tensor \"empty\" has shape [0, 4], expected [sequences, tokens]");
    refused_manifest(FROM(", tensor: flat"), EXF_MODEL, "tensor \"flat\" has shape [8]");
    refused_manifest(FROM(", tensor: thin"), EXF_MODEL, "tensor \"thin\" has shape [4, 0]");
    refused_manifest(FROM(", tensor: real"), EXF_MODEL, "tensor \"real\" is F32, expected integer token ids");
    put("ids.safetensors", "no such thing");
    refused_manifest(FROM(""), EXF_FORMAT, "ids.safetensors");
#undef FROM
}
END_TEST

START_TEST(ids_outside_the_vocabulary_are_refused)
{
    int64_t id[4][20] = {{0}};
    exf_tensor t = {.name = "x", .dtype = EXF_DT_I64, .rank = 2, .shape = {4, 20}, .data = id};
    exf_corpus_request q = ask(HEAD "  - {path: ids.safetensors, format: tokens}\n");
    id[3][17] = 1000; /* beyond max_tokens: still a contradiction */
    ck_ok(exf_st_write(exf_scratch("ids.safetensors"), 1, &t, 1, NULL, 0, NULL, &e), e);
    q.vocab = 1000;
    refused(&q, EXF_MODEL, "row 3, position 17: token id 1000, the vocabulary has 1000");
    q.vocab = 1001;
    exf_corpus_free(load(&q));
    id[2][0] = -1;
    ck_ok(exf_st_write(exf_scratch("ids.safetensors"), 1, &t, 1, NULL, 0, NULL, &e), e);
    refused(&q, EXF_MODEL, "row 2, position 0: token id -1, the vocabulary has 1001");
    t.dtype = EXF_DT_U64;
    ck_ok(exf_st_write(exf_scratch("ids.safetensors"), 1, &t, 1, NULL, 0, NULL, &e), e);
    refused(&q, EXF_MODEL, "row 2, position 0: token id 18446744073709551615,");
}
END_TEST

START_TEST(long_rows_are_read_in_blocks)
{
    put_ids("ids.safetensors", "x", 2, 150000);
    exf_corpus_request q = ask(HEAD "  - {path: ids.safetensors, format: tokens}\n");
    q.vocab = 1 << 20;
    q.max_tokens = 140000;
    exf_corpus *c = load(&q);
    ck_assert_int_eq(c->sequence[1].n_tokens, 140000);
    for (int32_t i = 0; i < 140000; i++) ck_assert_int_eq(c->ids[140000 + i], i + 1);
    ck_assert_uint_eq(c->domains[0].tokens_dropped, 20000);
    exf_corpus_free(c);
}
END_TEST

/* ---- how many, and which --------------------------------------------- */

START_TEST(the_choice_is_seeded_and_in_file_order)
{
    put_ids("ids.safetensors", "x", 20, 6);
    put_ids_from("more.safetensors", "x", 20, 6, 100);
    exf_corpus_request q = ask(HEAD "  - {path: ids.safetensors, format: tokens, domain: a, sequences: 5}\n"
                                    "  - {path: more.safetensors, format: tokens, domain: b, sequences: 5}\n");
    exf_corpus *c = load(&q), *again = load(&q);
    ck_assert_uint_eq(c->n_sequences, 10);
    for (size_t source = 0; source < 2; source++) {
        size_t pick[5];
        exf_rng_choose(pick, 5, 20, q.seed, source);
        for (size_t k = 0; k < 5; k++) {
            const exf_sequence *s = &c->sequence[5 * source + k];
            ck_assert_int_eq(s->source, (int)source);
            ck_assert_int_eq(s->row, (int64_t)pick[k]);
            ck_assert_int_eq(c->ids[s->offset], (int32_t)(100 * source + pick[k]));
        }
        ck_assert_uint_eq(c->domains[source].sequences_dropped, 15);
        ck_assert_uint_eq(c->domains[source].tokens_dropped, 90);
    }
    ck_assert_str_eq(c->tokens_digest, again->tokens_digest);
    ck_assert_str_eq(c->manifest_sha256, again->manifest_sha256);
    exf_corpus_free(again);
    q.seed++;
    again = load(&q);
    ck_assert_str_ne(c->tokens_digest, again->tokens_digest);
    exf_corpus_free(again);
    exf_corpus_free(c);
}
END_TEST

START_TEST(the_digest_covers_lengths_and_ids)
{
    put_ids("ids.safetensors", "x", 2, 3);
    exf_corpus_request q = ask(HEAD "  - {path: ids.safetensors, format: tokens}\n");
    exf_corpus *c = load(&q);
    static const unsigned char run[] = {3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0,
                                        3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0};
    char want[EXF_SHA256_HEX];
    ck_ok(exf_hash_bytes(run, sizeof run, want, &e), e);
    ck_assert_str_eq(c->tokens_digest, want);
    ck_ok(exf_hash_file(q.manifest, want, &e), e);
    ck_assert_str_eq(c->manifest_sha256, want);
    exf_corpus_free(c);
}
END_TEST

#define S(n) "  - {path: ids.safetensors, format: tokens, sequences: " #n "}\n"

START_TEST(a_total_is_shared_among_the_sources)
{
    int got[3] = {0};
    put_ids("ids.safetensors", "x", 20, 6);
    exf_corpus_request q = ask(HEAD S(4) SILENT S(4));
    q.sequences = 3;
    exf_corpus *c = load(&q);
    for (size_t i = 0; i < c->n_sequences; i++) got[c->sequence[i].source]++;
    ck_assert(got[0] == 2 && got[1] == 0 && got[2] == 1);
    ck_assert_uint_eq(c->n_domains, 3);
    ck_assert_uint_eq(c->domains[1].sequences_kept, 0);
    ck_assert_uint_eq(c->domains[1].sequences_dropped, 20);
    exf_corpus_free(c);
}
END_TEST

START_TEST(a_total_of_zero_takes_all_of_a_silent_source)
{
    put_ids("ids.safetensors", "x", 20, 6);
    put_ids_from("more.safetensors", "x", 20, 6, 100);
    exf_corpus_request q = ask(HEAD S(4) "  - {path: more.safetensors, format: tokens}\n");
    exf_corpus *c = load(&q);
    ck_assert_uint_eq(c->n_sequences, 24);
    exf_corpus_free(c);
}
END_TEST

/* A sequence that is there twice would count double, within a source as across sources; what a source did not give is left to the
 * next one. */
START_TEST(sequences_are_taken_once)
{
    int32_t id[5][6] = {{1}, {2}, {1}, {3}, {2}};
    exf_tensor t = {.name = "x", .dtype = EXF_DT_I32, .rank = 2, .shape = {5, 6}, .data = id};
    ck_ok(exf_st_write(exf_scratch("ids.safetensors"), 1, &t, 1, NULL, 0, NULL, &e), e);
    exf_corpus_request q = ask(HEAD SILENT);
    exf_corpus *c = load(&q);
    static const int64_t row[] = {0, 1, 3};
    ck_assert_uint_eq(c->n_sequences, 3);
    for (size_t i = 0; i < 3; i++) ck_assert(c->sequence[i].row == row[i] && c->sequence[i].document == row[i]);
    ck_assert(c->n_duplicates == 2 && c->duplicate_tokens == 12);
    ck_assert(c->domains[0].sequences_dropped == 2 && c->domains[0].tokens_dropped == 12);
    exf_corpus_free(c);
    q = ask(HEAD S(2) SILENT S(6));
    refused(&q, EXF_MODEL, "source 3 5 sequences of at most 8 tokens 6");
    q = ask(HEAD S(4)); /* has five, of which three are left */
    c = load(&q);
    ck_assert(c->n_sequences == 3 && c->n_duplicates == 2);
    exf_corpus_free(c);
    q = ask(HEAD S(2) SILENT SILENT);
    c = load(&q);
    ck_assert_uint_eq(c->n_sequences, 3);
    ck_assert(c->sequence[1].source == 0 && c->sequence[2].source == 1 && c->n_domains == 3 && c->domains[2].sequences_kept == 0);
    ck_assert_uint_eq(c->n_duplicates, 2 + 4 + 5);
    exf_corpus_free(c);
}
END_TEST

START_TEST(too_few_sequences_are_refused)
{
    put_ids("ids.safetensors", "x", 9, 6);
    put_ids_from("more.safetensors", "x", 9, 6, 100);
    exf_corpus_request q = ask(HEAD S(9) "  - {path: more.safetensors, format: tokens, domain: c, sequences: 16}\n");
    refused(&q, EXF_MODEL, "m.yaml: source 2 (more.safetensors, domain \"c\"): 9 sequences of at most 8 tokens, 16 asked for");
    q.sequences = 2; /* asks for less, and still the manifest says 16 */
    refused(&q, EXF_MODEL, "9 sequences of at most 8 tokens, 16 asked for");
    q = ask(HEAD S(5) S(5));
    q.sequences = 20;
    refused(&q, EXF_MODEL, "source 1 (ids.safetensors): 9 sequences of at most 8 tokens, 10 asked for as its share of 20");
}
END_TEST

START_TEST(domains_keep_their_order_and_add_up)
{
    static const char *const file[] = {"a.safetensors", "b.safetensors", "ids.safetensors", "c.safetensors"};
    for (int32_t i = 0; i < 4; i++) put_ids_from(file[i], "x", 4, 6, 100 * i);
#define D(file, d) "  - {path: " file ".safetensors, format: tokens, domain: " d ", sequences: 2}\n"
    exf_corpus_request q = ask(HEAD D("a", "prose") D("b", "c") SILENT D("c", "prose"));
    exf_corpus *c = load(&q);
    ck_assert_uint_eq(c->n_domains, 3);
    ck_assert_str_eq(c->domains[0].name, "prose");
    ck_assert_str_eq(c->domains[1].name, "c");
    ck_assert_str_eq(c->domains[2].name, "source-3");
    ck_assert_uint_eq(c->domains[0].sequences_kept, 4);
    ck_assert_uint_eq(c->domains[0].sequences_dropped, 4);
    ck_assert_uint_eq(c->domains[0].tokens_kept, 24);
    ck_assert_uint_eq(c->domains[2].sequences_kept, 4);
    ck_assert_int_eq(c->sequence[c->n_sequences - 1].domain, 0);
    ck_assert_int_eq(c->sequence[c->n_sequences - 1].source, 3);
    exf_corpus_free(c);
}
END_TEST

/* ---- files and requests ---------------------------------------------- */

/* ---- the whole ------------------------------------------------------- */

START_TEST(the_demo_manifests_are_sound)
{
    exf_corpus_request q = {.manifest = "data-manifests/demo.yaml", .max_tokens = 512, .min_tokens = 512, .seed = 1, .vocab = 2048,
                            .tokenizer = "examples/demo-model/tokenizer.json"};
    static const char *const domain[] = {"c", "prose", "python"};
    for (int tokens = 0; tokens < 2; tokens++) {
        if (tokens) q.manifest = "data-manifests/demo-tokens.yaml";
        exf_corpus *c = load(&q);
        ck_assert_int_eq(c->n_unpinned, 0);
        ck_assert_uint_eq(c->n_sequences, 48);
        ck_assert_uint_eq(c->n_tokens, 48 * 512);
        ck_assert_uint_eq(c->n_domains, 3);
        for (int d = 0; d < 3; d++) {
            ck_assert_str_eq(c->domains[d].name, domain[d]);
            ck_assert_uint_eq(c->domains[d].sequences_kept, 16);
        }
        exf_corpus_free(c);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, rows_are_cut_and_accounted);
    tcase_add_test(t, unpinned_sources_are_listed);
    tcase_add_test(t, every_integer_dtype_gives_the_same_ids);
    tcase_add_test(t, bad_tensors_are_refused);
    tcase_add_test(t, ids_outside_the_vocabulary_are_refused);
    tcase_add_test(t, long_rows_are_read_in_blocks);
    tcase_add_test(t, the_choice_is_seeded_and_in_file_order);
    tcase_add_test(t, the_digest_covers_lengths_and_ids);
    tcase_add_test(t, a_total_is_shared_among_the_sources);
    tcase_add_test(t, a_total_of_zero_takes_all_of_a_silent_source);
    tcase_add_test(t, sequences_are_taken_once);
    tcase_add_test(t, too_few_sequences_are_refused);
    tcase_add_test(t, domains_keep_their_order_and_add_up);
    tcase_add_test(t, the_demo_manifests_are_sound);
}
