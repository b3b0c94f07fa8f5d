/* check_made_from.c - the digest of the tables is found in every kind of derived file, and nothing else is. */
#include "tests/support/artifact_fixtures.h"

#include "artifact/provenance.h"

#define HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static exf_err e;
static char found[EXF_SHA256_HEX];

static const char *of(const char *text)
{
    exf_write_file(exf_scratch("f"), text, strlen(text));
    ck_ok(exf_made_from(exf_scratch("f"), found, &e), e);
    return found;
}

START_TEST(every_spelling_is_found)
{
    static const char *const texts[] = {
        "{\"provenance\": {\"validate.tables_digest\": \"" HEX "\"}}",
        "# tables_digest: " HEX "\nschema: exfold-recipe/1\n",
        "text\n\n<!-- tables_digest: " HEX " -->\n",
        "<tr><th>tables_digest</th><td>" HEX "</td></tr>",
        "a tables_digest that is none, then tables_digest=" HEX,
        "tables_digest" HEX,
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) ck_assert_str_eq(of(texts[i]), HEX);
}
END_TEST

START_TEST(what_is_no_digest_is_not_found)
{
    static const char *const texts[] = {
        "", "t", "tables_digest", "tables_diges: " HEX, HEX, "tables_digest: 0123", "tables_digest: " HEX "0",
        "tables_digest:                                                        " HEX,
        "tables_digest: 0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) ck_assert_str_eq(of(texts[i]), "");
    ck_ok(exf_made_from(exf_scratch("nowhere"), found, &e), e);
    ck_assert_str_eq(found, "");
    ck_ok(exf_made_from(exf_scratch(""), found, &e), e); /* a directory */
    ck_assert_str_eq(found, "");
}
END_TEST

/* Of a large file the ends are read. */
START_TEST(large_files_are_read_at_their_ends)
{
    static const char mark[] = "tables_digest: " HEX;
    const long size = (64l << 20) + 1000, at[] = {0, 100l << 10, 32l << 20, (64l << 20) + 900};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        FILE *f = fopen(exf_scratch("large"), "wb");
        ck_assert(f && ftruncate(fileno(f), size) == 0 && fseek(f, at[i], SEEK_SET) == 0);
        ck_assert_uint_eq(fwrite(mark, 1, strlen(mark), f), strlen(mark));
        ck_assert_int_eq(fclose(f), 0);
        ck_ok(exf_made_from(exf_scratch("large"), found, &e), e);
        ck_assert_str_eq(found, at[i] == 32l << 20 ? "" : HEX);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "made_from");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, every_spelling_is_found);
    tcase_add_test(t, what_is_no_digest_is_not_found);
    tcase_add_test(t, large_files_are_read_at_their_ends);
}
