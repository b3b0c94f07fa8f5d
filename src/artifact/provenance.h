/* provenance.h - facts as key = text that say from which inputs an artifact was made.
 *
 * They stand in order of key.  A stage copies its input's facts and adds its own under its name:
 *
 *   model.family, model.config_sha256, model.architecture, model.architecture_digest, model.weights_digest,
 *   model.weights_xxh3, model.weights_by_place_xxh3, ...
 *   tokenizer.sha256; tokenizer.bos, what goes before every document; tokenizer.unicode, the version of character classes
 *   data.manifest_sha256, data.tokens_digest, data.sequences, data.tokens, ...
 *   capture.program, capture.version, capture.commit, capture.numbers, capture.backend, ...
 *   accumulate.numbers, accumulate.weighting, ...      solve.ridge, solve.statistics_digest, ...
 *   solve.sensitivities_sha256, ...  of the file that budgets by "measured" come from
 *
 * A key that ends in sha256 has what `sha256sum FILE` prints of one file; a key that ends in digest
 * has the SHA-256 of contents, wherever and however they are stored: of an artifact's payload
 * (exf_h5_digest), of a checkpoint's tensors, of tokens or sequences.  Files of earlier programs name digests
 * sha256 too; they are read under the names of today.
 *
 * No clock, host or path is ever recorded: equal inputs give equal facts. */
#ifndef EXF_ARTIFACT_PROVENANCE_H
#define EXF_ARTIFACT_PROVENANCE_H
#include "base/text.h"
#include "format/h5.h"

/* The versions of the numbers that a forward pass gives, and of the sums that are made of them.  A commit that changes them for
 * equal inputs raises the version, of sums where they change alone (exf_sums_version); parts of one version add up whichever
 * commits made them (accumulate_facts.c). */
#define EXF_CAPTURE_NUMBERS_FACT "capture.numbers"
#define EXF_ACCUMULATE_NUMBERS_FACT "accumulate.numbers"
enum { EXF_CAPTURE_NUMBERS = 1 };
/* Tokens of each layer whose sums a GPU's run made again on the CPU (accumulate/cross_check.h); absent: none. */
#define EXF_CROSS_CHECK_FACT "accumulate.cross_check"

/* Ownership: zero-initialise, exf_provenance_free(). */
typedef struct {
    char **key, **value;
    size_t n, cap_key, cap_value;
} exf_provenance;

/* Adds a fact; EXF_INTERNAL if the key has another text already. */
exf_code exf_provenance_add(exf_provenance *p, exf_err *err, const char *key, const char *fmt, ...) EXF_PRINTF(4, 5) EXF_CHECKED;
const char *exf_provenance_get(const exf_provenance *p, const char *key); /* NULL if absent */
exf_code exf_provenance_copy(exf_provenance *to, const exf_provenance *from, exf_err *err) EXF_CHECKED;
void exf_provenance_free(exf_provenance *p);

/* Reads the facts, text attributes of the group /provenance. */
exf_code exf_provenance_read(exf_provenance *p, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Adds facts to a group that is there. */
exf_code exf_facts_append(const exf_provenance *p, const char *group, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Write and read the facts of another group.  Writing no facts makes no group; a missing group has no facts. */
exf_code exf_facts_write(const exf_provenance *p, const char *group, exf_h5 *h, exf_err *err) EXF_CHECKED;
exf_code exf_facts_read(exf_provenance *p, const char *group, exf_h5 *h, exf_err *err) EXF_CHECKED;

/* ---- the model: its architecture, the weights that were read, whether two files had the same (provenance_model.c) ----
 *
 *   model.architecture         what the forward pass reads of config.json, as words NAME=VALUE (model/architecture.h)
 *   model.architecture_digest  SHA-256 of that text
 *   model.config_sha256        of config.json, whatever else it says; files of earlier programs have this fact alone
 *   model.weights_xxh3     a digest list (base/hash.h) of the parts that the run read: "embedding",
 *                          "head", "<l>.experts", "<l>.other"; each the SHA-256 over names, types and shapes of the
 *                          part's tensors and the XXH3-128 of their bytes, in pieces as they were read
 *                          (model/weight_identity.h)
 *   model.weights_digest   SHA-256 of that list's text
 *   model.weights_by_place_xxh3
 *                          a digest list of the same parts; each of the same bytes by what they are in the model, not by name and
 *                          shape of the tensor that holds them: a copy with its experts in one tensor has the same ones; files
 *                          of earlier programs have none
 *   model.router_digests   a digest list of the MoE layers by number, "0", "1", ...; each the SHA-256 of the router's matrix
 *                          [E, H] as little-endian float32, by which a runtime knows the weights that it loads; files of
 *                          earlier programs have none
 *
 * Runs that read other parts (chosen layers, logits) are compared in the parts that both read.  A part is the same if its digest in
 * model.weights_xxh3 is, or, where both have it, that in model.weights_by_place_xxh3.  Files of
 * earlier programs have a model.weights_digest that was made in other ways (model.weights_parts: SHA-256 of all
 * bytes; neither list: of samples), so these are compared with each other only. */

/* Adds both facts of the text of an architecture. */
exf_code exf_architecture_facts_add(exf_provenance *p, const char *text, exf_err *err) EXF_CHECKED;
/* Adds the facts of lists of parts.  by_place: NULL where there is none. */
exf_code exf_weights_facts_add(exf_provenance *p, const char *parts, const char *by_place, exf_err *err) EXF_CHECKED;
#define EXF_WEIGHTS_FACT "model.weights_xxh3"
#define EXF_WEIGHTS_BY_PLACE_FACT "model.weights_by_place_xxh3"
#define EXF_ROUTERS_FACT "model.router_digests"
/* Returns 1 for the keys of the four facts of weights, which a run knows after its pass. */
int exf_weights_facts_key(const char *key);
/* Returns 1 for the keys of all six, which are joined and compared by the functions below. */
int exf_model_facts_key(const char *key);
/* Returns 1 for the keys of the three lists, which are for programs: of a model of 48 layers the first has 7,000 letters. */
int exf_weights_facts_list_key(const char *key);

/* EXF_MODEL naming both files, the first field of the architectures that differs and both values; of files of earlier programs,
 * config_sha256.  mend: the end of that sentence, what is to be done. */
exf_code exf_architecture_facts_same(const exf_provenance *a, const char *path_a, const exf_provenance *b, const char *path_b,
                                     const char *mend, exf_err *err) EXF_CHECKED;
/* EXF_MODEL naming both files and the first part that differs, or the first field of architectures that both name. */
exf_code exf_model_facts_same(const exf_provenance *a, const char *path_a, const exf_provenance *b, const char *path_b,
                              exf_err *err) EXF_CHECKED;
/* Adds to out the facts of the architecture and of all parts that any of n provenances has.  Where they name several digests of a
 * part, of layouts or of other weights that the caller accepts, the smallest in model.weights_xxh3 counts, so that order does not
 * matter. */
exf_code exf_model_facts_join(exf_provenance *out, const exf_provenance *const *part, size_t n, exf_err *err) EXF_CHECKED;
/* Returns 1 if both name parts of their weights of which one differs. */
int exf_weights_facts_differ(const exf_provenance *a, const exf_provenance *b);
/* Adds EXF_MIXED_WEIGHTS_FACT, the parts of whose weights n provenances that were joined name several digests; nothing where they
 * name one of each. */
#define EXF_MIXED_WEIGHTS_FACT "accumulate.other_weights"
exf_code exf_weights_facts_mixed(exf_provenance *out, const exf_provenance *const *part, size_t n, exf_err *err) EXF_CHECKED;
/* Writes how the weights of b differ from those of a, for a fact of what was made of both: "2 of 9 parts: 0.experts, 1.experts",
 * "none of 9 parts", or that one of them names no parts. */
exf_code exf_weights_facts_difference(exf_text *out, const exf_provenance *a, const exf_provenance *b, exf_err *err) EXF_CHECKED;

/* Joins the facts of n parts over different data.  Facts outside data.* must be equal in all parts
 * (EXF_MODEL naming the two files, the fact and both texts); data.sequences and data.tokens add up;
 * the other data.* facts are listed per part as data.<i>.*, parts in order of data.tokens_digest (of
 * recorded hidden states: data.moe_inputs_sha256), so that the order given does not matter.  The
 * same tokens twice are refused.  One part: a copy. */
exf_code exf_provenance_join(exf_provenance *out, const exf_provenance *const *part, const char *const *path, size_t n,
                             exf_err *err) EXF_CHECKED;

/* ---- settings of tables, in /origin of statistics ----
 *
 * How a run's recipe has its statistics solved: keys of recipes after this prefix ("setting.calibrate.ridge"), values as --set
 * takes them.  No digest covers them; exfold-solve takes them where it has no recipe. */
#define EXF_SETTING "setting."

/* ---- sums that are known to be wrong (CHANGELOG.md) ----
 *
 * Version 1 of a GPU's sums of co-routed pairs has dot and dot0 of many pairs twice or more where a token has more than 8 experts
 * of more than 2048 elements.  Version 2 is of such files alone: all others are as they were. */

/* Returns 1 if the facts say that a GPU made the outputs (capture.backend). */
int exf_is_by_gpu(const exf_provenance *p);
/* Returns the version of the sums that this program makes, from the facts capture.backend and accumulate.pairs. */
int exf_sums_version(const exf_provenance *p, int64_t top_k, int64_t d_model);
/* EXF_FORMAT naming the file, its shape and how to make it again, if its facts say that its sums are wrong. */
exf_code exf_sums_check_version(const exf_provenance *p, const char *path, int64_t top_k, int64_t d_model,
                                exf_err *err) EXF_CHECKED;

/* ---- of which tables a file was made -------------------------------------------
 *
 * Every file that is made from tables holds the word `tables_digest` and, within 48 bytes of it, the
 * digest of the tables: exports among their facts, validation.json in its provenance, Markdown,
 * SVG and YAML in a comment, a report among its facts. */
#define EXF_MADE_FROM "tables_digest"

/* Writes the digest that the file holds, or "" where it holds none or is no regular file.  Of a file
 * beyond 64 MiB only the first and the last MiB are read. */
exf_code exf_made_from(const char *path, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
/* Adds "<!-- tables_digest: HEX -->", a line that Markdown and XML do not show. */
exf_code exf_made_from_comment(exf_text *out, const char *hex, exf_err *err) EXF_CHECKED;
#endif
