/* record.c - records the statistics of two layers of a made-up model, as an inference engine would of its own.
 *
 *     cc record.c $(pkg-config --cflags --libs exfold-accumulate) -o record && ./record statistics.h5
 *
 * An engine calls exf_record_add after the experts of each layer, with what they put out before the router's weights. */
#include <exfold/accumulate.h>
#include <stdio.h>

enum { E = 4, K = 2, H = 8, TOKENS = 5, LAYERS = 2 };

static char message[512];

static int failed(int code)
{
    if (code) fprintf(stderr, "record: %s\n", message);
    return code;
}

/* What the chosen experts put out for one token: expert e is e + 1 times the token's direction, and a little of its own. */
static int add_token(exf_record *r, int layer, int token)
{
    int32_t sequence = 0, position = token, ids[K] = {token % E, (token + 1) % E};
    float weights[K] = {0.75f, 0.25f}, outputs[K][H];
    double stream_sq = 1.0 + token;
    for (int k = 0; k < K; k++)
        for (int h = 0; h < H; h++) outputs[k][h] = (float)(ids[k] + 1) * (float)(token + h) + (h == ids[k] ? 0.5f : 0.0f);
    exf_record_block b = {.size = sizeof b, .layer = layer, .n = 1, .sequence = &sequence, .position = &position, .ids = ids,
                          .weights = weights, .outputs = outputs, .stream_sq = &stream_sq};
    return exf_record_add(r, &b, message, sizeof message);
}

static int record(exf_record *r)
{
    const int32_t length = TOKENS, ids[TOKENS] = {11, 12, 13, 14, 15};
    char digest[65];
    int is_there, code = exf_record_begin(r, 1, &length, ids, NULL, NULL, &is_there, message, sizeof message);
    for (int token = 0; !code && !is_there && token < TOKENS; token++)
        for (int layer = 0; !code && layer < LAYERS; layer++) code = add_token(r, layer, token);
    if (!code && !is_there) code = exf_record_end(r, message, sizeof message);
    if (!code) code = exf_record_close(r, digest, message, sizeof message);
    if (!code) printf("%d layers of %d experts, %d tokens\n", LAYERS, E, TOKENS);
    return code;
}

int main(int argc, char **argv)
{
    const int32_t layers[LAYERS] = {0, 1};
    const exf_record_fact facts[] = {
        {"model.family", "made_up"},
        {"model.layers", "2"},
        {"model.config_sha256", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}; /* of no bytes: it has none */
    exf_record_options o = {.size = sizeof o, .path = argc > 1 ? argv[1] : "statistics.h5", .n_layers = LAYERS, .layers = layers,
                            .n_experts = E, .top_k = K, .d_model = H, .route_sample = 4096,
                            .n_facts = sizeof facts / sizeof *facts, .facts = facts};
    exf_record *r;
    if (failed(exf_record_open(&r, &o, message, sizeof message))) return 1;
    int code = failed(record(r));
    exf_record_free(r);
    return code ? 1 : 0;
}
