/* weights_record.c - see weights_record.h.  The record "weights" holds one tensor, the text of the digest list. */
#include "forward/weights_record.h"

#include "base/mem.h"

#define NAME "weights"
enum { MOST_BYTES = 1 << 20 };

exf_code exf_weights_record_put(const exf_model *m, exf_resume *r, int done, exf_err *err)
{
    exf_text list = {0};
    exf_code rc;
    EXF_TRY(exf_weight_identity_list(m->identity, &list, err));
    exf_tensor t = {.name = "parts", .dtype = EXF_DT_U8, .rank = 1, .shape = {(int64_t)list.len}, .data = list.s};
    EXF_TRY(exf_resume_put(r, NAME, done - 1, &t, 1, err));
out:
    exf_text_free(&list);
    return rc;
}

exf_code exf_weights_record_get(const exf_model *m, const exf_resume *r, exf_err *err)
{
    exf_st_file *f = NULL;
    char *list = NULL;
    exf_code rc;
    EXF_TRY(exf_resume_get(r, NAME, exf_resume_start(r)->layers_done - 1, &f, err));
    const exf_st_tensor *t = exf_st_find(f, "parts");
    exf_tensor expected = {.name = "parts", .dtype = EXF_DT_U8, .rank = 1, .shape = {t ? (int64_t)t->nbytes : 0}};
    if (t && t->nbytes > MOST_BYTES) expected.shape[0] = MOST_BYTES; /* no such list: refused below */
    EXF_TRY(exf_mem_new(&list, (size_t)expected.shape[0] + 1, 1, "weight identity", err));
    EXF_TRY(exf_resume_read(f, &expected, list, err));
    EXF_TRY(exf_weight_identity_restore(m->identity, list, exf_st_path(f), err));
out:
    exf_st_close(f);
    exf_mem_free(list);
    return rc;
}
