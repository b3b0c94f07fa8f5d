/* memory_plan.c - see memory_plan.h. */
#include "forward/memory_plan.h"

#include "forward/device_experts.h"

exf_code exf_open_device(exf_pass *p, exf_err *err)
{
    exf_stream_options o = {.n_slots = 2, .n_readers = p->options->readers, .n_layers = p->n_layers,
                            .head = p->demand.head && p->n_layers == p->model->arch.n_layers};
    exf_code rc;
    p->timed = p->options->timed;
    EXF_TRY(exf_weight_stream_open(&p->stream, p->model, p->b, p->compute, &o, err));
    if (exf_device_experts_fit(p->b, p->compute, &p->model->arch))
        EXF_TRY(exf_device_experts_open(p, exf_device_experts_tokens(&p->model->arch, p->batch->n_tokens), err));
out:
    return rc;
}

void exf_close_device(exf_pass *p)
{
    exf_stream_times times = {.reading = 0};
    uint64_t now;
    if (p->b->host_memory) return;
    p->b->memory(&now, &p->report->device_bytes);
    exf_weight_stream_close(p->stream, &times);
    p->report->reading = times.reading;
    p->report->sending = times.sending;
    exf_device_experts_close(p);
}

exf_code exf_pass_weights(exf_pass *p, int layer, exf_err *err)
{
    if (p->stream) return exf_weight_stream_next(p->stream, &p->weights_now, err);
    return exf_layer_weights_read(&p->weights_now, p->model, layer, err);
}
