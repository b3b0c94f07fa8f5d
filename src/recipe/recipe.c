/* recipe.c - the table of all recipe keys and common flags, and reading of a recipe into it; see recipe.h. */
#include "recipe/recipe.h"

#include "artifact/artifact.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/yaml.h"

#include <stddef.h>
#include <string.h>

#define AT(field) offsetof(exf_recipe, field)

static const exf_opt common_rows[] = {
    {NULL, "quiet", 'q', EXF_OPT_FLAG, AT(quiet), "false", NULL, "Messages", "say nothing but results and errors"},
    {NULL, "verbose", 'v', EXF_OPT_FLAG, AT(verbose), "false", NULL, "Messages", "say more"},
    {NULL, "progress", 0, EXF_OPT_CHOICE, AT(progress), "auto", "auto|lines|json|none", "Messages",
     "how progress is told on standard error"},
    {NULL, "help", 'h', EXF_OPT_FLAG, AT(help), "false", NULL, "Messages", "print this and exit"},
    {NULL, "help-keys", 0, EXF_OPT_FLAG, AT(help_keys), "false", NULL, "Messages",
     "print the recipe keys that the program reads and exit"},
    {NULL, "version", 0, EXF_OPT_FLAG, AT(version), "false", NULL, "Messages", "print the version and exit"},
};

static const exf_opt key_rows[] = {
    {"schema", NULL, 0, EXF_OPT_TEXT, AT(schema), NULL, "NAME", "Recipe", EXF_RECIPE_SCHEMA "; required"},
    {"model.path", "model", 0, EXF_OPT_TEXT, AT(model_path), NULL, "DIR", "Model",
     "checkpoint directory; config.json, *.safetensors (one, or shards with their index), tokenizer.json or tiktoken.model; "
     "required"},
    {"model.accept", "accept", 0, EXF_OPT_CHOICE, AT(accept), "nothing", "nothing|other-weights|small-calibration",
     "Model",
     "what may be that is refused otherwise; other-weights: those of the model may differ from the tables', such as where it was "
     "quantized, or stored in other types, after its calibration: the architecture must be the same, and every output says so; "
     "small-calibration: tables of too little text may be exported"},
    {"data.manifest", NULL, 0, EXF_OPT_TEXT, AT(manifest), NULL, "FILE", "Data", "the corpus, see exfold-manifest(5); required"},
    {"data.sequences", NULL, 0, EXF_OPT_INT, AT(sequences), "0", "0..", "Data",
     "sequences of the run, shared among the sources; 0: as many as the manifest says"},
    {"data.max_tokens", NULL, 0, EXF_OPT_INT, AT(max_tokens), "2048", "1..1048576", "Data",
     "longest sequence; longer documents are cut into pieces; the default is at most the model's positions, more is refused"},
    {"data.min_tokens", NULL, 0, EXF_OPT_INT, AT(min_tokens), "1", "1..1048576", "Data", "shorter pieces are dropped"},
    {"data.seed", NULL, 0, EXF_OPT_INT, AT(seed), "42", "0..", "Data", "of the choice of sequences"},
    {"data.bos", NULL, 0, EXF_OPT_CHOICE, AT(bos), "auto", "auto|always|never", "Data",
     "the token before every document; auto: as the model's tokenizer files say, by the rule of transformers 4.57; always, the "
     "bos_token of tokenizer_config.json"},
    {"calibrate.pairs", NULL, 0, EXF_OPT_CHOICE, AT(pairs), "corouted", "corouted|common_input", "Calibration",
     "which pairs are observed: corouted, those in one token's top-K; common_input, every pair, all experts run on the same "
     "tokens"},
    {"calibrate.observer_tokens", NULL, 0, EXF_OPT_INT, AT(observer_tokens), "64", "1..1048576", "Calibration",
     "common_input: tokens of a sequence that all experts run on, evenly spaced"},
    {"calibrate.bare_router", NULL, 0, EXF_OPT_FLAG, AT(bare_router), "false", NULL, "Calibration",
     "common_input: also add up what REAP's code observes; it routes by a softmax of the bare logits, without correction bias and "
     "groups: the variants reapN:router=code and export.router choose experts by it"},
    {"calibrate.weighting", NULL, 0, EXF_OPT_CHOICE, AT(weighting), "source_norm", "source_norm|none|router", "Calibration",
     "weight of a token in a pair's sums: source_norm, the norm of the source's output; none, 1; router, the source's "
     "router weight"},
    {"calibrate.ridge", NULL, 0, EXF_OPT_REAL, AT(ridge), "1e-3", "0..", "Calibration", "lambda in S = dot / (target_sq + lambda)"},
    {"calibrate.clip", NULL, 0, EXF_OPT_TEXT_LIST, AT(clip), "-4,4", "MIN,MAX", "Calibration", "range of S, or none"},
    {"calibrate.projectors", NULL, 0, EXF_OPT_TEXT_LIST, AT(projectors), "pair", "NAMES", "Calibration",
     "what is solved: pair, one scalar per ordered pair; layer, global, one scalar per layer or model; diagonal, one per "
     "hidden dimension; lowrank, a scalar plus Q C"},
    {"calibrate.ranks", NULL, 0, EXF_OPT_INT_LIST, AT(ranks), "8,16", "RANKS", "Calibration",
     "lowrank: ranks R, 1 to 32, from one basis of as many directions as the largest; sums and tables grow with them"},
    {"calibrate.vector_pairs", NULL, 0, EXF_OPT_INT, AT(vector_pairs), "1024", "1..", "Calibration",
     "diagonal, lowrank: ordered pairs a layer that get one, those of most energy; the others keep their scalar.  Statistics grow "
     "by 48 bytes a pair and dimension for diagonal, by 16 and those of the largest rank for lowrank"},
    {"calibrate.samples", NULL, 0, EXF_OPT_INT, AT(samples), "65536", "1..16777216", "Calibration",
     "lowrank: residuals a layer from which the basis is made"},
    {"calibrate.seed", NULL, 0, EXF_OPT_INT, AT(basis_seed), "1", "0..", "Calibration", "of that choice and of the basis"},
    {"calibrate.norm_head", NULL, 0, EXF_OPT_INT, AT(norm_head), "0", "0..256", "Calibration",
     "principal directions of a layer's input from which, with the router's logit and weight, the norm of an expert's output on a "
     "token is predicted (64 is plenty); 0: no such head"},
    {"calibrate.route_sample", NULL, 0, EXF_OPT_INT, AT(route_sample), "4096", "0..16777216", "Calibration",
     "tokens of a layer whose routes the statistics keep, from which budgets are solved; 0: none"},
    {"calibrate.min_pair_tokens", NULL, 0, EXF_OPT_INT, AT(min_pair_tokens), "1", "1..", "Calibration",
     "a pair seen by fewer tokens counts as unobserved"},
    {"coverage.fail_below", NULL, 0, EXF_OPT_REAL, AT(coverage_fail_below), "0.5", "0..1", "Calibration",
     "exit with status 10, and export nothing, when in a layer less than this share of the tokens of pairs are of pairs that "
     "coverage.pair_tokens tokens saw, or when the targets that half of the text chooses lose over 25 % of the experts' "
     "output more on the other half than its own: the text is too short; 0: any text will do"},
    {"coverage.pair_tokens", NULL, 0, EXF_OPT_INT, AT(coverage_tokens), "32", "1..", "Calibration",
     "tokens that must have seen a pair for it to count as covered"},
    {"pools", NULL, 0, EXF_OPT_TEXT_LIST, AT(pools), "[]", "SIZES", "Calibration",
     "static decode pools; sizes D, such as 8,4, each by three criteria: norm (the experts of largest mean norm), reap (mean "
     "w norm) and energy (summed (w norm)^2); by one alone 8:reap or, in a recipe, {size: 8, by: reap}; so too by REAP's others, "
     "frequency (routes), ean (summed norm) and weighted_ean (summed w norm)"},
    {"budgets", NULL, 0, EXF_OPT_INT_LIST, AT(budgets), "[]", "NUMBERS", "Calibration",
     "mean numbers of experts per token, such as 4,2, for which a budget per token is solved"},
    {"budget_rules", NULL, 0, EXF_OPT_TEXT_LIST, AT(budget_rules), "stream,output,top_p", "NAMES", "Calibration",
     "how each budget is solved: by predicted residual against the residual stream (stream), against a layer's output (output), "
     "against what folding the layer did to the model (measured, which needs --sensitivities), or by a share of w norm (top_p); "
     "skip: the threshold and factors of the variant skip, from what leaving out a layer's routed experts did (--sensitivities)"},
    {"runtime.backend", "backend", 0, EXF_OPT_CHOICE, AT(backend), "auto", "auto|cpu|cuda", "Runtime",
     "where the forward pass runs; auto: the GPU if there is a usable one; cuda without one ends with status 9"},
    {"runtime.threads", "threads", 't', EXF_OPT_INT, AT(threads), "0", "0..4096", "Runtime",
     "worker threads; 0: OMP_NUM_THREADS if set, else the processors this process may run on"},
    {"runtime.compute", NULL, 0, EXF_OPT_CHOICE, AT(compute), "auto", "auto|f32|bf16", "Runtime",
     "matrix products of the forward pass; f32 (on a GPU, weights that bfloat16 holds exactly stay in it); bf16, operands "
     "rounded, float32 sums, on a GPU only; auto: bf16 on a GPU that has it, f32 elsewhere"},
    {"runtime.tensor_cores", NULL, 0, EXF_OPT_CHOICE, AT(tensor_cores), "auto", "auto|wgmma|mma", "Runtime",
     "instructions by which a GPU's own kernels multiply; wgmma, of Hopper alone; mma (mma.sync), of GPUs since compute capability "
     "8.0; they differ in the last bits; auto: wgmma where the GPU has it"},
    {"runtime.cross_check", NULL, 0, EXF_OPT_FLAG, AT(cross_check), "true", NULL, "Runtime",
     "make a GPU's sums of eight tokens of each layer again on the CPU, from the same outputs, and stop with status 9 where they "
     "differ"},
    {"runtime.max_gpu_memory", "max-gpu-memory", 0, EXF_OPT_BYTES, AT(max_gpu_memory), "0", "SIZE", "Runtime",
     "most that a run holds in GPU memory; such as 8GiB; a limit that cannot be met is refused with the least that "
     "can; 0: what is free"},
    {"runtime.io", "io", 0, EXF_OPT_CHOICE, AT(io), "pread", "pread|direct", "Runtime",
     "how weights are read; pread, through the system's cache; direct, past it (O_DIRECT)"},
    {"runtime.streams", NULL, 0, EXF_OPT_INT, AT(streams), "0", "0..64", "Runtime",
     "sequences that a GPU mixes side by side, each on its own queue with its own workspace; results do not depend on it; "
     "0: 4, fewer where memory is short"},
    {"runtime.readers", NULL, 0, EXF_OPT_INT, AT(readers), "0", "0..64", "Runtime",
     "threads that read weights for a GPU; 0: two fewer than processors, so that kernels are launched meanwhile, 1 to 16"},
    {"runtime.resume", "resume", 0, EXF_OPT_CHOICE, AT(resume), "auto", "auto|require|never", "Runtime",
     "whether a stopped run goes on; auto: if it can, require: fails if it cannot, never: starts over"},
    {"runtime.checkpoint.every_layers", NULL, 0, EXF_OPT_INT, AT(checkpoint_layers), "0", "0..1048576", "Runtime",
     "save what a stopped run goes on from when so many layers are done; 0: layers do not matter"},
    {"runtime.checkpoint.every_seconds", NULL, 0, EXF_OPT_REAL, AT(checkpoint_seconds), "60", "0..", "Runtime",
     "the same when so many seconds have passed, or more, so that saving takes at most 4 % of the time (the first is reckoned "
     "with 1 GB/s); 0: time does not matter"},
    {"runtime.checkpoint.directory", NULL, 0, EXF_OPT_TEXT, AT(checkpoint_directory), NULL, "DIR", "Runtime",
     "where it is saved, as STAGE-ID in there, ID made of the output directory's path; default: .exfold-resume-STAGE in "
     "the output directory; STAGE is calibrate, validate or capture"},
    {"output.directory", "output", 'o', EXF_OPT_TEXT, AT(output_directory), NULL, "DIR", "Output",
     "where files are written; made if missing; required"},
    {"output.targets", NULL, 0, EXF_OPT_TEXT_LIST, AT(targets), "safetensors", "NAMES", "Output",
     "export formats, as exfold-export --help-keys lists them"},
    {"export.experts", NULL, 0, EXF_OPT_INT, AT(export_experts), "0", "0..65536", "Export",
     "experts that a pruned model keeps in each layer; as in the variant reapN; needed by the targets that prune"},
    {"export.by", NULL, 0, EXF_OPT_CHOICE, AT(export_by), "reap", "reap|norm|frequency|ean|weighted_ean", "Export",
     "what the experts that stay have most of: mean w ||E(x)||, mean ||E(x)||, routes, summed ||E(x)||, or summed w ||E(x)||"},
    {"export.router", NULL, 0, EXF_OPT_CHOICE, AT(export_router), "model", "model|code", "Export",
     "whose routes that is summed over; the model's, or those that REAP's code makes (calibrate.bare_router)"},
    {"export.expert_parallel", NULL, 0, EXF_OPT_INT, AT(export_ranks), "1", "1..65536", "Export",
     "ranks of expert parallelism, which hold experts in order; each keeps equally many"},
    {"card.base_model", NULL, 0, EXF_OPT_TEXT, AT(base_model), NULL, "NAME", "Model card",
     "the model's name on a hub: Qwen/Qwen3-30B-A3B"},
    {"card.revision", NULL, 0, EXF_OPT_TEXT, AT(revision), NULL, "COMMIT", "Model card", "the base model's revision"},
    {"card.datasets", NULL, 0, EXF_OPT_TEXT_LIST, AT(datasets), NULL, "NAMES", "Model card",
     "names of the calibration data on a hub"},
    {"serve.runtime", "runtime", 0, EXF_OPT_TEXT, AT(serve_runtime), NULL, "NAME", "Serving",
     "the runtime that will serve the tables; exfold, sglang-deepseek-v4, vllm-deepseek-v4, vllm-qwen3, vllm-qwen3-speed: a "
     "validation and --frontier fold as it does and refuse what it does not run, an export checks what it will do; default: "
     "none, every variant as it is written"},
    {"serve.unobserved_layers", NULL, 0, EXF_OPT_CHOICE, AT(unobserved_layers), "refuse", "refuse|accept", "Serving",
     "what an export does where the runtime folds a layer of which the tables have no pair; refuse, or accept that the "
     "runtime loses there what it leaves out"},
    {"validate.tables", "tables", 0, EXF_OPT_TEXT, AT(validate_tables), NULL, "FILE", "Validation",
     "tables to validate; or a public plugin's as scripts/pt_to_safetensors.py writes them; default: tables.h5 in the output "
     "directory"},
    {"validate.manifest", NULL, 0, EXF_OPT_TEXT, AT(validate_manifest), NULL, "FILE", "Validation",
     "the held-out corpus, see exfold-manifest(5); required to validate"},
    {"validate.sequences", NULL, 0, EXF_OPT_INT, AT(validate_sequences), "0", "0..", "Validation",
     "sequences; 0: as many as the manifest says"},
    {"validate.max_tokens", NULL, 0, EXF_OPT_INT, AT(validate_max_tokens), "0", "0..1048576", "Validation",
     "longest sequence; 0: data.max_tokens"},
    {"validate.variants", "variants", 0, EXF_OPT_WORD_LIST, AT(variants), NULL, "\"A B ...\"", "Validation",
     "ways to run; see exfold-variants(7): P4, P4:projector=joint, top4:drop, D64:pool=static, reap64, sere4:rho=0.1, "
     "P4+D64, ..."},
    {"validate.decode_batch", NULL, 0, EXF_OPT_INT_LIST, AT(decode_batch), "16", "NUMBERS", "Validation",
     "sequences that decode side by side; every N of the run's, in its order, whatever file or domain they are of; step q of a "
     "batch is its tokens at position q; of several sizes each is run: 1,8,32"},
    {"validate.baselines", NULL, 0, EXF_OPT_FLAG, AT(baselines), "true", NULL, "Validation",
     "run beside the variants what says how much the tables are worth: at each P, D and decode batch what is left out dropped, "
     "dropped and the weights renormalised, folded at random (three lanes each), and the first P and D by each half of the "
     "calibration"},
    {"validate.prefill_tokens", NULL, 0, EXF_OPT_INT, AT(prefill_tokens), "0", "0..1048576", "Validation",
     "positions below are prefill, the rest decode; 0: every position is both"},
    {"validate.limit", "limit", 0, EXF_OPT_TEXT, AT(validate_limit), NULL, "METRIC=X", "Validation",
     "recommend P and D within this limit; kl=X, log_ppl=X or ppl_ratio=X: the cheapest whose whole 95 % interval holds it; sweeps "
     "as --frontier does unless variants are given beside it"},
    {"validate.gpu", "gpu", 0, EXF_OPT_TEXT, AT(validate_gpu), NULL, "NAME", "Validation",
     "GPU that will serve; its name as nvidia-smi writes it, or short: H200, RTX4090; bounds decode tokens per second by its "
     "memory bandwidth"},
    {"validate.bandwidth", "bandwidth", 0, EXF_OPT_TEXT, AT(validate_bandwidth), NULL, "RATE", "Validation",
     "memory bandwidth of another; such as 4.8TB/s"},
    {"validate.fail_above", "fail-above", 0, EXF_OPT_WORD_LIST, AT(fail_above), "[]", "LIMITS", "Validation",
     "end with status 10 above one of these; [VARIANT:]METRIC=X ..., such as kl=0.2 or P4:kl_p99=1.5; metrics: ppl, kl, "
     "kl_median, kl_p90, kl_p99, kl_p999, kl_max, flips, output_error"},
};

/* Paths are relative to the recipe's file. */
static const struct {
    const char *key;
    size_t offset;
} path_rows[] = {
    {"model.path", AT(model_path)}, {"data.manifest", AT(manifest)}, {"output.directory", AT(output_directory)},
    {"validate.tables", AT(validate_tables)}, {"validate.manifest", AT(validate_manifest)},
    {"runtime.checkpoint.directory", AT(checkpoint_directory)},
};
enum { N_PATHS = sizeof path_rows / sizeof *path_rows };

const exf_opt *exf_recipe_global_rows(size_t *n)
{
    *n = sizeof common_rows / sizeof *common_rows;
    return common_rows;
}

const exf_opt *exf_recipe_key_rows(size_t *n)
{
    *n = sizeof key_rows / sizeof *key_rows;
    return key_rows;
}

/* ---- files that are no recipe -------------------------------------------------------- */

static const struct {
    const char *kind, *takers;
} taken[] = {
    {"capture", "exfold-accumulate"},
    {"statistics", "exfold-solve and exfold-merge"},
    {"tables", "exfold-export and exfold-validate --tables"},
};

/* Returns rc, the result of reading path as a recipe; where it failed although the name is no recipe's, and the program takes
 * texts, err says how to give one. */
static exf_code refuse_text(const exf_recipe *r, const char *path, exf_code rc, exf_err *err)
{
    int is_named_so = exf_ends_with(path, ".yaml") || exf_ends_with(path, ".yml");
    if (rc != EXF_USAGE || is_named_so || !exf_opts_takes(r->opts, "text")) return rc;
    return exf_fail(err, EXF_USAGE, "%s: is no recipe (YAML with schema: exfold-recipe/1); a text to read is given with --text %s",
                    path, path);
}

/* Returns rc, the result of reading path as YAML; where it failed because the file is an artifact, another HDF5 file, a
 * .safetensors file or a text, err says so instead. */
static exf_code refuse_others(const exf_recipe *r, const char *path, exf_code rc, exf_err *err)
{
    unsigned char head[9];
    exf_err unused;
    exf_h5 *h = NULL;
    const exf_artifact *artifact = NULL;
    if (rc != EXF_USAGE || !exf_file_begins(path, head, sizeof head)) return refuse_text(r, path, rc, err);
    if (head[6] == 0 && head[7] == 0 && head[8] == '{') /* the upper bytes of a header's length, and its first letter */
        return exf_fail(err, EXF_USAGE, "%s: is a .safetensors file, expected a recipe (YAML); a model is given with --model DIR%s",
                        path, exf_opts_takes(r->opts, "text") ? ", token ids with --text FILE" : "");
    if (memcmp(head, "\211HDF\r\n\032\n", 8) != 0) return refuse_text(r, path, rc, err);
    if (exf_artifact_open(&h, path, NULL, &artifact, NULL, &unused) == EXF_OK) exf_h5_close(h);
    for (size_t i = 0; artifact && i < sizeof taken / sizeof *taken; i++)
        if (strcmp(taken[i].kind, artifact->kind) == 0)
            return exf_fail(err, EXF_USAGE, "%s: holds %s, expected a recipe (YAML); %s and exfold-inspect take it", path,
                            artifact->kind, taken[i].takers);
    return exf_fail(err, EXF_USAGE, "%s: is an HDF5 file, expected a recipe (YAML)", path);
}

/* ---- reading ---------------------------------------------------------------- */

typedef struct {
    exf_recipe *recipe;
    const char *path;
    int skips_paths; /* 1: ignores keys whose values are paths */
} reading;

/* Refuses "~" and "null" as values; what they could stand for is not known. */
static exf_code refuse_null(const exf_yaml *node, const char *key, const char *where, exf_err *err)
{
    if (node->kind != EXF_YAML_SCALAR || !node->is_null || !*node->text) return EXF_OK;
    return exf_fail(err, EXF_USAGE, "%s: %s: is null (%s), expected a value; leave it out, or quote a text", where, key,
                    node->text);
}

static exf_code set_list(const reading *r, const char *key, const exf_yaml *node, const char *where, exf_err *err)
{
    const char **item = NULL;
    exf_text *pools = NULL; /* those that are maps, as texts */
    exf_code rc;
    EXF_TRY(exf_mem_new(&item, node->n, sizeof *item, "recipe list", err));
    EXF_TRY(exf_mem_new(&pools, node->n, sizeof *pools, "recipe list", err));
    for (size_t i = 0; i < node->n; i++) {
        const exf_yaml *child = node->child[i];
        EXF_TRY(refuse_null(child, key, where, err));
        item[i] = child->text;
        if (child->kind == EXF_YAML_SCALAR) continue;
        const exf_yaml *size = exf_yaml_get(child, "size"), *by = exf_yaml_get(child, "by");
        if (strcmp(key, "pools") != 0 || child->kind != EXF_YAML_MAP) {
            rc = exf_fail(err, EXF_USAGE, "%s: %s: item %zu is %s, expected a scalar", where, key, i + 1,
                          exf_yaml_kind_name(child));
            goto out;
        }
        if (!size || size->kind != EXF_YAML_SCALAR || (by && by->kind != EXF_YAML_SCALAR) || child->n != (by ? 2u : 1u)) {
            rc = exf_fail(err, EXF_USAGE, "%s: %s: expected {size: D} or {size: D, by: norm|reap|energy}", where, key);
            goto out;
        }
        exf_text_appendf(&pools[i], by ? "%s:%s" : "%s", size->text, by ? by->text : ""); /* {size: D, by: NAME} as D:NAME */
        EXF_TRY(exf_text_end(&pools[i], err));
        item[i] = pools[i].s;
    }
    rc = exf_opts_set_list(r->recipe->opts, EXF_OPT_BY_RECIPE, key, item, node->n, where, err);
out:
    for (size_t i = 0; pools && i < node->n; i++) exf_text_free(&pools[i]);
    exf_mem_free(pools);
    exf_mem_free(item);
    return rc;
}

int exf_recipe_is_path(const char *key)
{
    for (int i = 0; i < N_PATHS; i++)
        if (strcmp(key, path_rows[i].key) == 0) return 1;
    return 0;
}

/* Sets each member of a map under its dotted key. */
static exf_code set_map(const reading *r, const char *prefix, const exf_yaml *map, exf_err *err)
{
    exf_text key = {0}, where = {0};
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < map->n; i++) {
        const exf_yaml *node = map->child[i];
        key.len = where.len = 0;
        exf_text_appendf(&key, "%s%s%s", prefix, *prefix ? "." : "", map->key[i]);
        exf_text_appendf(&where, "%s:%d", r->path, node->line);
        EXF_TRY(exf_text_end(&key, err));
        EXF_TRY(exf_text_end(&where, err));
        if (r->skips_paths && exf_recipe_is_path(key.s)) continue;
        if (node->kind == EXF_YAML_SCALAR && !*node->text && exf_opts_is_section(r->recipe->opts, key.s)) continue; /* "card:" */
        EXF_TRY(refuse_null(node, key.s, where.s, err));
        switch (node->kind) {
        case EXF_YAML_MAP: EXF_TRY(set_map(r, key.s, node, err)); break;
        case EXF_YAML_LIST: EXF_TRY(set_list(r, key.s, node, where.s, err)); break;
        case EXF_YAML_SCALAR: EXF_TRY(exf_opts_set(r->recipe->opts, EXF_OPT_BY_RECIPE, key.s, node->text, where.s, err)); break;
        }
    }
out:
    exf_text_free(&key);
    exf_text_free(&where);
    return rc;
}

exf_code exf_recipe_read(exf_recipe *r, const char *path, exf_err *err)
{
    exf_code rc;
    exf_yaml *root = NULL;
    char *dir = NULL;
    reading reader = {r, path, 0};
    EXF_TRY(refuse_others(r, path, exf_yaml_load(&root, path, err), err));
    const exf_yaml *schema = exf_yaml_get(root, "schema");
    if (root->kind != EXF_YAML_MAP)
        rc = exf_fail(err, EXF_USAGE, "%s: is %s, expected a map with schema: " EXF_RECIPE_SCHEMA, path, exf_yaml_kind_name(root));
    else if (!schema || schema->kind != EXF_YAML_SCALAR || strcmp(schema->text, EXF_RECIPE_SCHEMA) != 0)
        rc = exf_fail(err, EXF_USAGE, "%s: schema is %s, expected " EXF_RECIPE_SCHEMA, path,
                      schema && schema->kind == EXF_YAML_SCALAR ? schema->text : "missing");
    EXF_TRY(refuse_text(r, path, rc, err));
    EXF_TRY(set_map(&reader, "", root, err));
    EXF_TRY(exf_path_dir(&dir, path, err));
    for (int i = 0; i < N_PATHS; i++) { /* make paths relative to the working directory */
        char **value = (char **)((char *)r + path_rows[i].offset), *joined;
        if (!*value || exf_opts_given(r->opts, path_rows[i].key, EXF_OPT_BY_ARGV)) continue;
        EXF_TRY(exf_path_join(&joined, dir, *value, err));
        exf_mem_free(*value);
        *value = joined;
    }
out:
    exf_yaml_free(root);
    exf_mem_free(dir);
    return rc;
}

exf_code exf_recipe_read_settings(exf_recipe *r, const char *bytes, size_t len, const char *name, exf_err *err)
{
    exf_yaml *root = NULL;
    reading reader = {r, name, 1};
    exf_code rc = exf_yaml_parse(&root, bytes, len, name, err);
    if (rc == EXF_OK) rc = set_map(&reader, "", root, err);
    exf_yaml_free(root);
    return rc;
}

void exf_recipe_free(exf_recipe *r)
{
    exf_opts_free(r->opts);
}
