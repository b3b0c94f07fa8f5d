/* digest_fixtures.h - compares the digest that a writer gave with the digest of the file that it wrote. */
#ifndef EXF_TESTS_DIGEST_FIXTURES_H
#define EXF_TESTS_DIGEST_FIXTURES_H
#include "artifact/artifact.h"

#include <stdio.h>
#include <string.h>

/* EXF_INTERNAL unless the artifact at path has the payload digest `given`.  A file that cannot be compared is removed, as
 * one that was not written. */
static inline exf_code same_digest(const char *path, const char *given, exf_err *err)
{
    char of_file[EXF_SHA256_HEX];
    exf_code rc = exf_artifact_digest(path, NULL, of_file, err);
    if (rc == EXF_OK && strcmp(of_file, given) != 0)
        rc = exf_fail(err, EXF_INTERNAL, "%s: its writer gave the digest %s, the file has %s", path, given, of_file);
    if (rc != EXF_OK) (void)remove(path);
    return rc;
}
#endif
