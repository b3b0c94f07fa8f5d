/* table_list.h - lists the contents of a tables file as named tensors: export targets
 * without a layout of their own write them, exfold-inspect verify compares them.
 *
 *   coeff, loss                       F32 [L, E, E]   count         U64 [L, E, E]
 *   expert_norms                      F32 [L, E]      expert_count  U64 [L, E]
 *   cosine, similarity, frobenius, std_error  F32 [L, E, E]   rms, contribution  F32 [L, E]
 *   pools.<D>.members I32 [L, D], pools.<D>.target_ids I32 [L, E], pools.<D>.target_scale F32 [L, E]
 *   shared.<name>.scalar F32 [L], shared.<name>.loss F32 [L, E, E]
 *   vectors.pair I32 [N, 3], vectors.diagonal F32 [N, H], vectors.diagonal_loss F32 [L, E, E],
 *   vectors.basis F32 [L, H, R], vectors.lowrank.<R>.c F32 [N, R, H]
 *
 * What the tables lack (tables.h) is not in the list. */
#ifndef EXF_ARTIFACT_TABLE_LIST_H
#define EXF_ARTIFACT_TABLE_LIST_H
#include "artifact/tables.h"

enum { EXF_TABLE_NAME = 64 };

typedef struct {
    exf_tensor *tensor; /* data borrowed from the tables */
    char (*name)[EXF_TABLE_NAME];
    size_t n, cap;
} exf_table_list;

exf_code exf_table_list_make(exf_table_list *l, const exf_tables *t, exf_err *err) EXF_CHECKED;
void exf_table_list_free(exf_table_list *l);
#endif
