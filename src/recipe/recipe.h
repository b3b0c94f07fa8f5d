/* recipe.h - exf_recipe holds the settings of a run: the recipe's keys (schema
 * exfold-recipe/1) and the command line's flags, in one option table (recipe.c).
 *
 *   schema: exfold-recipe/1
 *   model: {path: DIR}
 *   data: {manifest: FILE, sequences: 48, max_tokens: 512, min_tokens: 1, seed: 42}
 *   calibrate: {pairs: corouted, weighting: source_norm, ridge: 1.0e-3, clip: [-4, 4], projectors: [pair]}
 *   coverage: {fail_below: 0}
 *   pools: [8, 4]
 *   runtime: {backend: auto, threads: 0, compute: auto, io: pread}
 *   output: {directory: DIR, targets: [safetensors]}
 *   serve: {runtime: vllm-qwen3, unobserved_layers: refuse}
 *   export: {experts: 8, expert_parallel: 1}
 *   card: {base_model: NAME, revision: COMMIT, datasets: [NAME]}
 *   validate: {tables: FILE, manifest: FILE, variants: [P4, 'P4:projector=joint', D64], decode_batch: 16}
 *
 * Precedence: command line > recipe > default.  Paths in a recipe are relative to
 * the recipe's file, paths on the command line to the working directory. */
#ifndef EXF_RECIPE_RECIPE_H
#define EXF_RECIPE_RECIPE_H
#include "accumulate/accumulate.h"
#include "base/opt.h"
#include "kernels/statistics/layer_sums.h"
#include "solve/solve.h"

typedef struct {
    /* flags of every program */
    int help, help_keys, version, quiet, verbose;
    int progress; /* exf_progress_mode */
    /* flags of some */
    int force, dry_run, logits, pin_manifest;
    int frontier, list_inputs;
    char *layers, *export_path, *moe_inputs, *json_path, *picture_path;
    int json, data; /* of exfold-inspect: this line and the next */
    char *output_file;
    exf_text_list what, range;
    exf_text_list texts; /* --text; inputs after it are texts too */
    char *text_field, *init_path;
    /* recipe keys */
    char *schema, *model_path, *manifest;
    int64_t sequences, max_tokens, min_tokens, seed;
    int pairs, weighting; /* EXF_PAIRS_*; exf_weighting */
    int64_t observer_tokens, vector_pairs, samples, basis_seed, route_sample, min_pair_tokens;
    char *basis_path; /* calibrate.basis */
    int basis_only, partial;
    char *shard_text; /* --shard */
    int64_t plan_ranks, plan_nodes; /* of a prediction (plan.h); 0: not given */
    exf_text_list plan_rates;
    int shard, n_shards; /* shard of n_shards, from 1; n_shards 0: all of the data (run_shard.h) */
    double ridge, coverage_fail_below;
    exf_int_list ranks;
    exf_text_list clip, projectors;
    exf_text_list pools, budget_rules;
    exf_int_list budgets;
    char *sensitivities;     /* --sensitivities FILE of exfold-solve */
    int wants_sensitivities; /* --sensitivities of exfold-validate */
    int backend, compute, io; /* EXF_BACKEND_*; EXF_COMPUTE_IS_*; exf_io */
    int64_t threads, readers, streams;
    uint64_t max_gpu_memory;
    int resume; /* exf_resume_mode */
    int64_t checkpoint_layers;
    double checkpoint_seconds;
    char *checkpoint_directory;
    char *output_directory;
    exf_text_list targets;
    int64_t export_experts, export_ranks;
    char *base_model, *revision; /* of a model card */
    exf_text_list datasets;
    char *serve_runtime; /* fold/runtime.h; NULL: none */
    int unobserved_layers; /* EXF_UNOBSERVED_* */
    char *validate_tables, *validate_manifest;
    exf_text_list variants, fail_above; /* fold/variant.h, validate/quality_gate.h */
    int64_t validate_sequences, validate_max_tokens, decode_batch, prefill_tokens;
    /* not options */
    struct exf_ranks *job;     /* the ranks of the run (ranks/ranks.h); NULL: one process */
    const char *recipe_file; /* NULL: none was given */
    const char *manifest_text; /* the manifest's bytes where --text made it (tool/text_inputs.h); NULL: it is a file */
    const char **inputs;     /* other positional arguments */
    size_t n_inputs;
    exf_opts *opts;
} exf_recipe;

enum { EXF_UNOBSERVED_REFUSE, EXF_UNOBSERVED_ACCEPT };
enum { EXF_PAIRS_COROUTED, EXF_PAIRS_COMMON_INPUT };
enum { EXF_BACKEND_AUTO, EXF_BACKEND_CPU, EXF_BACKEND_CUDA };
enum { EXF_COMPUTE_IS_AUTO, EXF_COMPUTE_IS_F32, EXF_COMPUTE_IS_BF16 };

/* Rows for flags of every program, and for the recipe's keys. */
const exf_opt *exf_recipe_global_rows(size_t *n);
const exf_opt *exf_recipe_key_rows(size_t *n);

/* Reads a recipe file into r->opts at recipe rank and makes its paths relative to the working directory. */
exf_code exf_recipe_read(exf_recipe *r, const char *path, exf_err *err) EXF_CHECKED;
/* After a failure whose message begins with "KEY: ", puts the place that set the key there instead:
 * "recipe.yaml:7: pools: ", "--set pools: ".  Returns rc, or EXF_NOSPACE. */
exf_code exf_recipe_blame(const exf_recipe *r, exf_code rc, exf_err *err) EXF_CHECKED;
/* Reads the settings of a recipe that is no file, a map that is known to be well-formed, at recipe rank:
 * all keys but those that hold paths.  name is for messages. */
exf_code exf_recipe_read_settings(exf_recipe *r, const char *bytes, size_t len, const char *name, exf_err *err) EXF_CHECKED;
/* Checks beyond a single key's: required keys, the clip pair, the backend. */
exf_code exf_recipe_check_data(const exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_recipe_check_model(const exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_recipe_check_output(const exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_recipe_check_targets(const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* The runtime of serve.runtime; *out NULL: none is named. */
struct exf_runtime;
exf_code exf_recipe_runtime(const exf_recipe *r, const struct exf_runtime **out, exf_err *err) EXF_CHECKED;
exf_code exf_recipe_check_pools(const exf_recipe *r, int n_experts, exf_err *err) EXF_CHECKED;
/* The solve options; borrows from r. */
exf_code exf_recipe_solve_options(const exf_recipe *r, exf_solve_options *o, exf_err *err) EXF_CHECKED;
/* The accumulate options; borrows nothing.  options->basis is NULL: exf_recipe_open_basis(). */
exf_code exf_recipe_accumulate_options(const exf_recipe *r, exf_accumulate_options *o, exf_err *err) EXF_CHECKED;
/* Opens the basis of calibrate.basis, if there is one, and lends it to the options.  EXF_USAGE where no projector needs it,
 * or where a basis is what the run makes.  The caller closes it. */
exf_code exf_recipe_open_basis(const exf_recipe *r, exf_basis *b, exf_accumulate_options *o, exf_err *err) EXF_CHECKED;
/* Appends a key's value, in the text form of opt.h, as the recipe's YAML has it; directory as below. */
exf_code exf_recipe_add_value(const exf_opt *row, const char *value, const char *directory, exf_text *out,
                              exf_err *err) EXF_CHECKED;
/* The resolved recipe as YAML: every key with the value that was used, paths so that they are true in a
 * file of that directory (recipe_path.h); directory NULL: paths as they are from the working directory. */
exf_code exf_recipe_text(const exf_recipe *r, const char *directory, exf_text *out, exf_err *err) EXF_CHECKED;
void exf_recipe_free(exf_recipe *r);
#endif
