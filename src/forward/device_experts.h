/* device_experts.h - the second half of a layer on a device that has the grouped
 * products: many tokens at once, whichever sequences they are of, nothing waited for.
 *
 * Everything here works on rows alone and a row's bits depend on that row only
 * (expert_products.h), so how a run is cut into pieces changes no result. */
#ifndef EXF_FORWARD_DEVICE_EXPERTS_H
#define EXF_FORWARD_DEVICE_EXPERTS_H
#include "forward/expert_step.h"

/* Bytes for `tokens` at a time; with common input enough for some of that too. */
size_t exf_device_experts_bytes(const exf_backend *b, const exf_architecture *a, int tokens, int common);
/* Tokens at a time that are worth their memory in a run of n_tokens. */
int exf_device_experts_tokens(const exf_architecture *a, size_t n_tokens);
/* 1 if this compute on this backend can have them for this model. */
int exf_device_experts_fit(const exf_backend *b, exf_compute compute, const exf_architecture *a);
exf_code exf_device_experts_open(exf_pass *p, int tokens, exf_err *err) EXF_CHECKED;
void exf_device_experts_close(exf_pass *p);

/* 1 if the step's experts can run this way: no vectors are added, no lane probes. */
int exf_device_experts_serve(const exf_step *s);
/* 1 if the step's routes are looked at on the host. */
int exf_step_wants_host_routes(const exf_step *s);
/* One sweep over the whole run. */
exf_code exf_device_experts_run(const exf_step *s, exf_err *err) EXF_CHECKED;
#endif
