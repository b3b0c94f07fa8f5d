/* present_names.c - see present_names.h. */
#include "capture/present_names.h"

enum { MOST = 12 };

/* Name number i of a list of n. */
static exf_code add_name(exf_text *out, size_t i, const char *name, exf_err *err)
{
    return i < MOST ? exf_text_addf(out, err, "%s\"%.60s\"", i ? ", " : "", name) : EXF_OK;
}

static exf_code add_rest(exf_text *out, size_t n, exf_err *err)
{
    if (n == 0) return exf_text_addf(out, err, "none");
    return n > MOST ? exf_text_addf(out, err, " and %zu more", n - MOST) : EXF_OK;
}

exf_code exf_member_names(const exf_json *object, exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    size_t n = 0;
    for (void *it = exf_json_first(object); it && rc == EXF_OK; it = exf_json_next(object, it))
        rc = add_name(out, n++, exf_json_key(it), err);
    return rc == EXF_OK ? add_rest(out, n, err) : rc;
}

exf_code exf_tensor_names(const exf_st_file *f, exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    size_t n = exf_st_count(f);
    for (size_t i = 0; i < n && rc == EXF_OK; i++) rc = add_name(out, i, exf_st_at(f, i)->view.name, err);
    return rc == EXF_OK ? add_rest(out, n, err) : rc;
}
