/* names.h - choices that several modules share: a model states them, kernels compute them. */
#ifndef EXF_BASE_NAMES_H
#define EXF_BASE_NAMES_H

/* How a router makes scores of a token's logits. */
typedef enum { EXF_ROUTER_SOFTMAX, EXF_ROUTER_SIGMOID, EXF_ROUTER_SQRT_SOFTPLUS } exf_router_score;
#endif
