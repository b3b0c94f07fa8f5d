/* inspect_verify.c - exfold-inspect verify: one line per check that held. */
#include "tool/inspect.h"
#include "tool/terminal.h"
#include "tool/verify_directory.h"

#include <stdio.h>

static exf_code print_line(void *self, const char *sentence, exf_err *err)
{
    (void)self;
    (void)err;
    printf("ok  ");
    exf_print_text(sentence, 0);
    printf("\n");
    return EXF_OK;
}

static exf_code add_member(void *self, const char *sentence, exf_err *err)
{
    (void)err;
    exf_jw_text(self, NULL, sentence);
    return EXF_OK;
}

static exf_code verify_as_json(exf_recipe *r, exf_err *err)
{
    exf_jw w = {0};
    exf_err printing;
    exf_jw_open(&w, NULL, '{');
    exf_jw_open(&w, "held", '[');
    exf_code rc = exf_verify_inputs(r->inputs, r->n_inputs, add_member, &w, err);
    exf_jw_close(&w);
    exf_jw_bool(&w, "ok", rc == EXF_OK);
    exf_jw_text(&w, "failed", rc == EXF_OK ? NULL : err->msg);
    exf_jw_close(&w);
    exf_code printed = exf_print_json(&w, &printing);
    if (rc == EXF_OK && printed != EXF_OK) *err = printing;
    return rc != EXF_OK ? rc : printed;
}

exf_code exf_inspect_verify(exf_recipe *r, exf_err *err)
{
    return r->json ? verify_as_json(r, err) : exf_verify_inputs(r->inputs, r->n_inputs, print_line, NULL, err);
}
