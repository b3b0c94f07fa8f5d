/* check_stopping.c - a stop that was requested ends whatever loops over data: hashing and reading of
 * sources; tokenizing: check_tokenizer.c. */
#include "tests/support/corpus_fixtures.h"

#include "base/err.h"
#include "base/hash.h"

#include <signal.h>

START_TEST(hashing_stops)
{
    char hex[EXF_SHA256_HEX];
    put("data", "some bytes");
    exf_stop_request(SIGINT);
    ck_fails(exf_hash_file(exf_scratch("data"), hex, &e), EXF_SIGINT, e, "2");
    exf_stop_request(0);
    ck_ok(exf_hash_file(exf_scratch("data"), hex, &e), e);
}
END_TEST

static const char *const manifest[] = {
    HEAD "  - {path: docs.jsonl, format: jsonl}\n",
    HEAD "  - {path: docs.jsonl, format: text}\n",
    HEAD SILENT,
};

START_TEST(reading_sources_stops)
{
    put("docs.jsonl", "{\"text\": \"The sea comes and goes twice a day.\"}\n");
    put_ids("ids.safetensors", "input_ids", 4, 16);
    exf_corpus_request q = ask(manifest[_i]);
    exf_corpus *c = NULL;
    q.vocab = 1504;
    exf_stop_request(SIGTERM);
    ck_fails(exf_corpus_load(&c, &q, &e), EXF_SIGTERM, e, "15");
    exf_stop_request(0);
    exf_corpus_free(load(&q));
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "data");
    tcase_add_test(c, hashing_stops);
    tcase_add_loop_test(c, reading_sources_stops, 0, 3);
}
