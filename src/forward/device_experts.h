/* device_experts.h - the second half of a layer on a device that has the grouped
 * products: many tokens at once, whichever sequences they are of, nothing waited for.
 *
 * Everything here works on rows alone and a row's bits depend on that row only
 * (expert_products.h), so how a run is cut into pieces changes no result. */
#ifndef EXF_FORWARD_DEVICE_EXPERTS_H
#define EXF_FORWARD_DEVICE_EXPERTS_H
#include "forward/expert_step.h"

/* Bytes for `tokens` at a time; with common input enough for some of that too. */
size_t exf_device_experts_bytes(const exf_backend *b, const exf_architecture *a, int tokens, int common_input);
/* 1 if this compute on this backend can have them for this model. */
int exf_device_experts_fit(const exf_backend *b, exf_compute compute, const exf_architecture *a);
exf_code exf_device_experts_open(exf_pass *p, int tokens, exf_err *err) EXF_CHECKED;
void exf_device_experts_close(exf_pass *p);

/* 1 if the step's experts can run this way: no vectors are added, no lane probes. */
int exf_device_experts_serve(const exf_step *s);
/* 1 if the step's routes are looked at on the host. */
int exf_step_wants_host_routes(const exf_step *s);
/* One sweep over the step's group. */
exf_code exf_device_experts_run(const exf_step *s, exf_err *err) EXF_CHECKED;
/* After all groups: EXF_NUMERIC where hidden states of the run are not finite, if anywhere. */
exf_code exf_device_experts_check(const exf_step *s, exf_err *err) EXF_CHECKED;
#endif
