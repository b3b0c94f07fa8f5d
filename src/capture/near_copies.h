/* near_copies.h - finds documents that are near copies of one another: most of their shingles, runs of EXF_SHINGLE words, coincide.
 *
 * A document has a sketch, one-permutation MinHash (Li, Owen, Zhang 2012) with empty bins filled from others (Shrivastava 2017):
 * the share of equal values of two sketches estimates the Jaccard similarity of their sets of shingles, standard error 0.035 at
 * 0.8.  Sketches that agree in a band of values are compared, and documents of EXF_SAME_DOCUMENT or more are joined, transitively:
 * groups of copies.  What comes out depends on the documents, not on their order. */
#ifndef EXF_CAPTURE_NEAR_COPIES_H
#define EXF_CAPTURE_NEAR_COPIES_H
#include "artifact/sketch_set.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { EXF_SHINGLE = 3, EXF_SKETCH = EXF_SKETCH_BYTES };
#define EXF_SAME_DOCUMENT 0.8 /* Jaccard similarity of the sets of shingles from which on two documents are near copies */

typedef struct {
    uint16_t value[EXF_SKETCH];
    uint16_t empty; /* 1: the document has no words, and is like no other */
} exf_sketch;

/* A word is a run of bytes above a space; a character from U+3000 on, of scripts that put no spaces, is a word of its own. */
void exf_sketch_of_text(exf_sketch *s, const char *text, size_t len);
/* A word is a token. */
void exf_sketch_of_ids(exf_sketch *s, const int32_t *ids, size_t n);
/* Write and read what an artifact has of a sketch that is not empty: the lowest byte of each value, by which unlike documents seem
 * 1/256 more alike. */
void exf_sketch_pack(unsigned char out[EXF_SKETCH_BYTES], const exf_sketch *s);
void exf_sketch_unpack(exf_sketch *s, const unsigned char packed[EXF_SKETCH_BYTES]);
/* Returns the estimated similarity; 0 where one is empty. */
double exf_sketch_similarity(const exf_sketch *a, const exf_sketch *b);

/* Sets group [n] to the lowest index of a document of its group, its own where nothing is like it.  Memory: 24 n bytes;
 * 100,000 documents take a second. */
exf_code exf_near_copies_find(size_t *group, const exf_sketch *sketch, size_t n, exf_err *err) EXF_CHECKED;
#endif
