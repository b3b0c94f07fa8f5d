/* memory_plan.c - see memory_plan.h. */
#include "forward/memory_plan.h"

#include "forward/device_experts.h"

enum { LEAST_EXPERT_TOKENS = 512, USUAL_QUEUES = 4 };

/* Beside what is counted: rounded operands, the product library's own workspaces. */
static const uint64_t queue_bytes = (uint64_t)160 << 20;

/* What does not depend on the plan: hidden states, routes, tokens, a workspace, sums. */
static uint64_t fixed_bytes(const exf_backend *b, const exf_model *m, const exf_batch *batch, const exf_demand *d)
{
    const exf_architecture *a = &m->arch;
    uint64_t tokens = batch->n_tokens, hidden = tokens * sizeof(float) * exf_row_width(a) * d->lanes;
    uint64_t route_sets = 1 + d->probes + (d->lanes > 1) + (d->corrects != 0); /* see open_routes */
    uint64_t rotary = (uint64_t)batch->max_tokens * 4 * (uint64_t)(a->rope[EXF_ROPE_MAIN].dim + a->rope[EXF_ROPE_COMPRESSED].dim);
    return hidden + tokens * (4 + 8u * (uint64_t)a->top_k * route_sets) + rotary + exf_workspace_bytes(b, a, batch->max_tokens, d) +
           b->moments_bytes(a->n_experts) + (d->common ? b->grams_bytes(a->n_experts, exf_gram_tokens(a->n_experts)) : 0) + d->observers + queue_bytes +
           (d->scored ? sizeof(float) * (uint64_t)exf_head_rows(b) * (uint64_t)a->vocab : 0);
}

static uint64_t plan_bytes(const exf_memory_plan *p, const exf_backend *b, exf_compute compute, const exf_model *m, int max_tokens, int common,
                           uint64_t fixed)
{
    uint64_t more_queues = (uint64_t)(p->n_queues - 1) * (exf_workspace_mixing_bytes(b, &m->arch, max_tokens) + queue_bytes);
    uint64_t experts = p->expert_tokens ? exf_device_experts_bytes(b, &m->arch, p->expert_tokens, common) : 0;
    return fixed + more_queues + experts + (uint64_t)p->stream.n_slots * exf_stream_slot_bytes(m, compute, &p->stream) +
           exf_stream_reader_bytes(m, compute, &p->stream);
}

/* The next smaller plan; 0 if there is none. */
static int shrink(exf_memory_plan *p, int most_tokens)
{
    if (p->n_queues > 1) {
        p->n_queues /= 2;
        return 1;
    }
    if (p->expert_tokens > LEAST_EXPERT_TOKENS) {
        p->expert_tokens = p->expert_tokens / 2 > LEAST_EXPERT_TOKENS ? p->expert_tokens / 2 : LEAST_EXPERT_TOKENS;
        return 1;
    }
    if (p->stream.n_slots == 1) return 0;
    p->stream.n_slots = 1;
    p->expert_tokens = most_tokens;
    return 1;
}

exf_code exf_memory_plan_make(exf_memory_plan *plan, const exf_forward_options *o, const exf_model *m, const exf_batch *batch,
                              const exf_demand *d, int n_layers, exf_err *err)
{
    const exf_backend *b = o->backend;
    exf_compute compute = (exf_compute)o->compute;
    uint64_t most = o->max_device_memory, fixed = fixed_bytes(b, m, batch, d);
    size_t queues = o->streams > 0 ? (size_t)o->streams : USUAL_QUEUES;
    int tokens = exf_device_experts_fit(b, compute, &m->arch) ? exf_device_experts_tokens(&m->arch, batch->n_tokens) : 0;
    *plan = (exf_memory_plan){.stream = {.n_slots = 2, .n_readers = o->readers, .n_layers = n_layers, .head = d->head && n_layers == m->arch.n_layers},
                              .n_queues = (int)(queues < batch->n_sequences ? queues : batch->n_sequences), .expert_tokens = tokens};
    for (;;) {
        plan->bytes = plan_bytes(plan, b, compute, m, batch->max_tokens, d->common, fixed);
        if (most == 0 || plan->bytes <= most) return EXF_OK;
        exf_memory_plan smaller = *plan;
        if (!shrink(&smaller, tokens)) break;
        *plan = smaller;
    }
    return exf_fail(err, EXF_NOSPACE, "GPU memory: a limit of %llu bytes is too little for this pass, the smallest that works is %llu",
                    (unsigned long long)most, (unsigned long long)plan->bytes);
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
