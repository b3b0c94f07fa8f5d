/* weight_identity.h - a weight identity is the digest of the weights that a run read: of all their bytes,
 * hashed as they were read for the work.  It tells one checkpoint from another and notices damage; weights that
 * someone made to have the digest of others it does not notice (SECURITY.md).
 *
 * Weights are hashed in pieces, on the threads that read them, so that their order in time does not
 * matter: a piece is at most exf_weight_piece_rows() rows of one tensor, or of one expert's part of a
 * stack; scales are hashed beside their codes.  A part is the unit that is compared:
 *
 *   embedding      the table of embeddings, also where it is the head as well
 *   head           the other tensors outside layers
 *   <l>.experts    layer l's router, routed and shared experts
 *   <l>.other      layer l's other tensors
 *
 * A part has two digests, of the same pieces.  One is by name: the SHA-256 over the pieces in order of tensor name and
 * position: name (a text), dtype (a text), rank and axes (u64 each), first byte and bytes of the piece in the tensor (u64), and
 * the XXH3-128 of those bytes (a text of 32 hexadecimal digits); texts are preceded by their length (u64), numbers
 * are little endian.  It is no sha256sum of a file: it does not depend on how tensors are spread over files.
 *
 * The other is by place, what the bytes are in the model: the SHA-256 over the pieces in order of place: the name that the family's
 * first layout gives the matrix, with {L} and {E} (a text), half of it, expert, kind (u64 each), dtype (a text), first byte and
 * bytes of the piece in the expert's matrix (u64), and the same XXH3-128.  A copy with its experts in one tensor, or with other
 * names, has the same digests by place; one whose matrices are transposed or whose rows of two roles alternate has not, because
 * bytes are hashed as they lie.  Weights are the same if either digest is.
 *
 * Both are of bytes, not of values: the same values in another type have another digest.  A digest of values would need pieces that
 * are cut by elements, and each hashed in the narrowest type that holds it, so that the threads that read would decode and
 * narrow what they now hash as it comes, for a GPU that decodes it again; and FP8 or FP4 have the values of no other type in
 * general.  Who has such a copy accepts other weights by name, and outputs say so (exf_weights_facts_difference()). */
#ifndef EXF_MODEL_WEIGHT_IDENTITY_H
#define EXF_MODEL_WEIGHT_IDENTITY_H
#include "base/text.h"
#include "model/checkpoint.h"

/* Numbers of parts: layer l has EXF_PART_LAYERS + 2 l (experts) and the one after it (other). */
enum { EXF_PART_EMBEDDING, EXF_PART_HEAD, EXF_PART_LAYERS };

/* What the bytes of a tensor are in the model, whatever the tensor's name. */
typedef struct {
    int part;            /* of the identity */
    const char *matrix;  /* the pattern of the name in the family's first layout, which ends at a '|'; NULL: "" */
    int half;            /* 1: the second of the two matrices that the pattern names */
    int copy;            /* expert, or run of rows */
    int kind;            /* exf_stored_kind */
    uint64_t first_byte; /* of the copy in the tensor */
} exf_weight_place;

typedef struct exf_weight_identity exf_weight_identity;

exf_code exf_weight_identity_new(exf_weight_identity **out, int n_layers, exf_err *err) EXF_CHECKED;
void exf_weight_identity_free(exf_weight_identity *id); /* NULL is allowed */
/* Adds a piece: n bytes that were read from byte `begin` of a tensor, and their XXH3 in hex.  Thread-safe. */
exf_code exf_weight_identity_add(exf_weight_identity *id, const exf_weight_place *place, const exf_stored_tensor *of,
                                 uint64_t begin, size_t n, const char hex[EXF_XXH3_HEX], exf_err *err) EXF_CHECKED;
/* Makes the digests of a part that was read whole.  EXF_MODEL if it was read or restored before and differs, or
 * differs from what is expected.  Does nothing for a part that was not read. */
exf_code exf_weight_identity_settle(exf_weight_identity *id, int part, exf_err *err) EXF_CHECKED;
/* Appends the digests by name (places 0), or by place, of all parts that are settled, as a digest list (base/hash.h). */
exf_code exf_weight_identity_list(exf_weight_identity *id, int places, exf_text *out, exf_err *err) EXF_CHECKED;
/* Takes the parts of both lists over, as read by the run before; EXF_FORMAT naming path if one is no list of parts. */
exf_code exf_weight_identity_restore(exf_weight_identity *id, const char *list, const char *by_place, const char *path,
                                     exf_err *err) EXF_CHECKED;
/* From now on a part that differs from its digest in both lists is refused.  by_place: NULL where the file has none.  path: the
 * file made with those weights, for the message. */
exf_code exf_weight_identity_expect(exf_weight_identity *id, const char *list, const char *by_place, const char *path,
                                    exf_err *err) EXF_CHECKED;

/* Consecutive bytes of a tensor as they are read, cut in pieces. */
typedef struct exf_piece_hash {
    exf_weight_identity *id; /* NULL: nothing is hashed */
    exf_weight_place place;
    const exf_stored_tensor *of;
    uint64_t begin;          /* first byte of the present piece */
    size_t piece, filled;    /* bytes of a piece; bytes of the present one so far */
    exf_xxh3 *hash;          /* NULL: no piece is begun */
} exf_piece_hash;

exf_code exf_piece_hash_add(exf_piece_hash *p, const void *bytes, size_t n, exf_err *err) EXF_CHECKED;
/* Ends the last piece; frees what p holds, also after a failure (rc is then returned). */
exf_code exf_piece_hash_end(exf_piece_hash *p, exf_code rc, exf_err *err) EXF_CHECKED;

/* ---- elements of a checkpoint's tensor as float32 ------------------------- */

/* Elements [begin, begin + n) as float32 (F32, F16, BF16, and integers below 2^24).
 * EXF_NUMERIC naming file, tensor and position at the first that is not finite.  The bytes that are read go to the hash too, if it
 * is not NULL. */
exf_code exf_stored_read(const exf_stored_tensor *s, size_t begin, size_t n, float *dst, exf_piece_hash *hash,
                         exf_err *err) EXF_CHECKED;
#endif
