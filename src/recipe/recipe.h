/* recipe.h - exf_recipe holds the settings of a run: the recipe's keys (schema
 * exfold-recipe/1) and the command line's flags, in one option table (recipe.c).
 *
 *   schema: exfold-recipe/1
 *   model: {path: DIR}
 *   data: {manifest: FILE, sequences: 48, max_tokens: 512, min_tokens: 1, seed: 42}
 *   calibrate: {pairs: corouted, weighting: source_norm, ridge: 1.0e-3, clip: [-4, 4], projectors: [pair]}
 *   coverage: {fail_below: 0.5, pair_tokens: 32}
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
#include "base/text.h"
#include "solve/solve.h"

#define EXF_RECIPE_SCHEMA "exfold-recipe/1"

typedef struct {
    /* flags of every program */
    int help, help_keys, version, quiet, verbose;
    int progress; /* exf_progress_mode */
    /* flags of some */
    int force, dry_run, logits, pin_manifest;
    int frontier, list_inputs;
    int64_t show_text; /* samples to print in place of a run; 0: run */
    char *ids_path;    /* file that gets the text's token ids in place of a run; NULL: run */
    char *layers, *export_path, *json_path, *picture_path;
    int json, data; /* of exfold-inspect: this line and the next */
    char *output_file;
    exf_text_list what, range;
    exf_text_list texts; /* --text; inputs after it are texts too */
    char *text_field, *init_path;
    /* recipe keys */
    char *schema, *model_path, *manifest;
    int64_t sequences, max_tokens, min_tokens, seed;
    int bos; /* exf_bos (tokenizer/tokenizer.h) */
    int pairs, weighting; /* EXF_PAIRS_*; exf_weighting */
    int bare_router;
    int64_t observer_tokens, vector_pairs, samples, basis_seed, route_sample, min_pair_tokens;
    int64_t norm_head;
    int partial;
    char *shard_text; /* --shard */
    int64_t plan_ranks, plan_nodes; /* of a prediction (plan/plan.h); 0: not given */
    exf_text_list plan_rates;
    int shard, n_shards; /* shard of n_shards, from 1; n_shards 0: all of the data (run/session.h) */
    double ridge, coverage_fail_below;
    int64_t coverage_tokens;
    exf_int_list ranks;
    exf_text_list clip, projectors;
    exf_text_list pools, budget_rules;
    exf_int_list budgets;
    char *sensitivities;     /* --sensitivities FILE of exfold-solve */
    int wants_sensitivities; /* --sensitivities of exfold-validate */
    int backend, compute, io; /* EXF_BACKEND_*; EXF_COMPUTE_IS_*; exf_io */
    int tensor_cores;         /* exf_tensor_cores */
    int cross_check;
    int64_t threads, readers, streams;
    uint64_t max_gpu_memory;
    int resume; /* exf_resume_mode */
    int64_t checkpoint_layers;
    double checkpoint_seconds;
    char *checkpoint_directory;
    char *output_directory;
    exf_text_list targets;
    int64_t export_experts, export_ranks;
    int export_router; /* 1: by the bare router */
    int export_by; /* place in exf_export_criteria */
    char *base_model, *revision; /* of a model card */
    exf_text_list datasets;
    char *serve_runtime; /* fold/runtime.h; NULL: none */
    int unobserved_layers; /* EXF_UNOBSERVED_* */
    char *validate_tables, *validate_manifest;
    char *validate_limit, *validate_gpu, *validate_bandwidth; /* validate/recommendation.h, validate/cost.h; NULL: not given */
    int accept; /* EXF_ACCEPT_* */
    exf_text_list variants, fail_above; /* fold/variant.h, validate/gates.h */
    int64_t validate_sequences, validate_max_tokens, prefill_tokens;
    exf_int_list decode_batch;
    int baselines;
    /* not options */
    struct exf_ranks *job;     /* the ranks of the run (ranks/ranks.h); NULL: one process */
    const char *recipe_file; /* NULL: none was given */
    const char *manifest_text; /* the manifest's bytes where --text made it (exf_text_inputs); NULL: it is a file */
    const char **inputs;     /* other positional arguments */
    size_t n_inputs;
    exf_opts *opts;
} exf_recipe;

enum { EXF_UNOBSERVED_REFUSE, EXF_UNOBSERVED_ACCEPT };
enum { EXF_LARGEST_BATCH = 65536 }; /* sequences that decode side by side, at most */
enum { EXF_ACCEPT_NOTHING, EXF_ACCEPT_OTHER_WEIGHTS, EXF_ACCEPT_SMALL_CALIBRATION };
enum { EXF_PAIRS_COROUTED, EXF_PAIRS_COMMON_INPUT };
enum { EXF_BACKEND_AUTO, EXF_BACKEND_CPU, EXF_BACKEND_CUDA };
enum { EXF_COMPUTE_IS_AUTO, EXF_COMPUTE_IS_F32, EXF_COMPUTE_IS_BF16 };

/* Return the rows for flags of every program, and for the recipe's keys. */
const exf_opt *exf_recipe_global_rows(size_t *n);
const exf_opt *exf_recipe_key_rows(size_t *n);

/* Reads a recipe file into r->opts at recipe rank and makes its paths relative to the working directory. */
exf_code exf_recipe_read(exf_recipe *r, const char *path, exf_err *err) EXF_CHECKED;
/* After a failure whose message begins with "KEY: ", puts the place that set the key there instead:
 * "recipe.yaml:7: pools: ", "--set pools: ".  Returns rc, or EXF_NOSPACE. */
exf_code exf_recipe_blame(const exf_recipe *r, exf_code rc, exf_err *err) EXF_CHECKED;
/* Fails with EXF_USAGE and such a message, "KEY: ...". */
exf_code exf_recipe_refuse(const exf_recipe *r, exf_err *err, const char *fmt, ...) EXF_PRINTF(3, 4) EXF_CHECKED;
/* Reads the settings of a recipe that is no file, a map that is known to be well-formed, at recipe rank:
 * all keys but those that hold paths.  name is for messages. */
exf_code exf_recipe_read_settings(exf_recipe *r, const char *bytes, size_t len, const char *name, exf_err *err) EXF_CHECKED;
/* Check what no single key can: required keys, lengths, names of targets. */
exf_code exf_recipe_check_data(const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Refuses sequences longer than the model's positions (0: unknown); the default length becomes that many, if it is more. */
exf_code exf_recipe_fit_positions(exf_recipe *r, double positions, exf_err *err) EXF_CHECKED;
exf_code exf_recipe_check_model(const exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_recipe_check_output(const exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_recipe_check_targets(const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Finds the runtime of serve.runtime; *out NULL: none is named. */
struct exf_runtime;
exf_code exf_recipe_runtime(const exf_recipe *r, const struct exf_runtime **out, exf_err *err) EXF_CHECKED;
/* Checks the sizes of decode batches. */
exf_code exf_recipe_check_batches(const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Refuses what a model of this shape cannot have: co-routed pairs of one expert per token, pools of more experts, ranks above its
 * width, budgets that no fold takes or for which no routes are sampled. */
exf_code exf_recipe_check_shape(const exf_recipe *r, const exf_run_shape *model, exf_err *err) EXF_CHECKED;
/* Refuses budgets by "measured" or "skip" without their file, and that file without a budget. */
exf_code exf_recipe_check_measured(const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Makes the solve options; they borrow from r. */
exf_code exf_recipe_solve_options(const exf_recipe *r, exf_solve_options *o, exf_err *err) EXF_CHECKED;
/* Makes the accumulate options; they borrow nothing. */
exf_code exf_recipe_accumulate_options(const exf_recipe *r, exf_accumulate_options *o, exf_err *err) EXF_CHECKED;
void exf_recipe_free(exf_recipe *r);

/* ---- the resolved recipe (recipe_text.c) ------------------------------------------------------- */

/* Returns 1 if the key's value is a path, which in a recipe is relative to the recipe's directory. */
int exf_recipe_is_path(const char *key);
/* Spells a path so that it stays true in a recipe file of a directory.  path is relative to the working directory or
 * absolute.  What lies in the directory or below is spelled relative to it ("." the directory itself), so that the directory may
 * move; all else is absolute.  Links in front of the last name are followed, the last name is kept, since the sources of a
 * manifest are relative to the name by which it was opened.  A path at which nothing exists is joined to the working directory.
 * The caller frees. */
exf_code exf_recipe_path(char **out, const char *path, const char *directory, exf_err *err) EXF_CHECKED;
/* Appends a key's value, in the text form of opt.h, as the recipe's YAML has it; directory as below. */
exf_code exf_recipe_add_value(const exf_opt *row, const char *value, const char *directory, exf_text *out,
                              exf_err *err) EXF_CHECKED;
/* Appends the resolved recipe as YAML: every key with the value that was used, paths by exf_recipe_path(); directory NULL: paths
 * as they are from the working directory. */
exf_code exf_recipe_text(const exf_recipe *r, const char *directory, exf_text *out, exf_err *err) EXF_CHECKED;
/* Appends the resolved recipe at path as it is published with an export: its settings, with output.directory the directory and
 * all other paths relative to it, so that it names no directory of the machine above the last one that they share.  A path
 * at which nothing exists, such as one of another machine, is left out, as is runtime.checkpoint.directory; *left_out names those
 * keys.  made_from: the digest of the tables. */
exf_code exf_recipe_publish(const char *path, const char *directory, const char *made_from, exf_text *out, exf_text *left_out,
                            exf_err *err) EXF_CHECKED;

/* Makes the JSON Schema of a recipe, of the rows of the table and the names of the registries (recipe_schema.c).
 * The caller frees. */
exf_code exf_recipe_schema(exf_text *out, exf_err *err) EXF_CHECKED;

/* ---- a run without a recipe (recipe_defaults.c) -------------------------------------------------- */

/* A released model, recognised by the sizes in its config.json, whose recipe and manifests are embedded in the programs. */
typedef struct {
    const char *title;  /* "Qwen3-30B-A3B" */
    const char *recipe; /* "recipes/qwen3-30b-a3b.yaml" */
    const char *family;
    int n_layers, n_experts, top_k, d_model;
} exf_released_model;

/* Appends an embedded file, named by its path from the project's root.  EXF_INTERNAL if there is none. */
exf_code exf_released_file(exf_text *out, const char *path, exf_err *err) EXF_CHECKED;
/* Sets what --init writes into a recipe, at recipe rank, so that flags and --set win.  A released model gets the settings of its
 * recipe, without its paths; any other the defaults of the option table, static pools of a half and a quarter of its experts, the
 * exports that can serve it beside safetensors, and variants at half of its routes and experts to validate.  Reads config.json
 * alone.  *released: the model that was recognised, or NULL. */
exf_code exf_default_settings_set(exf_recipe *r, const exf_released_model **released, exf_err *err) EXF_CHECKED;

/* The settings of which a run reports. */
typedef enum { EXF_SETTINGS_OF_CALIBRATION, EXF_SETTINGS_OF_VALIDATION } exf_settings_of;
/* Does nothing where a recipe is given.  Else sets them for a run, with all sequences of --text rather than a recipe's number,
 * and reports on stderr every setting that was not given on the command line. */
exf_code exf_default_settings(exf_recipe *r, exf_settings_of what, exf_err *err) EXF_CHECKED;
/* Adds the settings by which tables are solved, as facts that statistics keep (EXF_SETTING). */
exf_code exf_solve_settings_keep(const exf_recipe *r, exf_provenance *out, exf_err *err) EXF_CHECKED;
/* Without a recipe takes the settings that the statistics at `path` keep in their origin, but for those that the command line
 * gives, and says which they are; where they keep none, the defaults. */
exf_code exf_solve_settings_take(exf_recipe *r, const exf_provenance *kept, const char *path, exf_err *err) EXF_CHECKED;

/* ---- the corpus of --text (recipe_texts.c) ------------------------------------------------------------ */

/* The files of --text, those of its directories, and standard input ("-") become a manifest in memory, which is read as any
 * manifest is and is written beside the outputs, so that the run can be repeated from files. */

typedef struct {
    exf_text manifest; /* its bytes; empty where no --text was given */
    char *path;        /* of the file that it will be, absolute; NULL where no --text was given */
} exf_text_inputs;

/* Recognises the files of --text and the arguments after them, reports them on stderr in one line, and makes
 * their manifest, in which paths are absolute and every file is pinned.  Does nothing without --text.
 *
 * A directory stands for its files and those of its folders, in byte order of names; hidden ones, links and what is no text are
 * passed over, and said.  Its files are one domain, called after it, and those of each folder in it another.  Standard input is
 * read once, and its manifest, which says "-", can be read again while the same bytes are piped. */
exf_code exf_text_inputs_make(exf_text_inputs *t, const exf_recipe *r, const char *path, exf_err *err) EXF_CHECKED;
/* Returns 1 if standard input is one of them: of several ranks only the first has what is piped. */
int exf_text_inputs_piped(const exf_recipe *r);
/* Makes that manifest the value of the recipe's key, "data.manifest" or "validate.manifest".  r borrows from t. */
exf_code exf_text_inputs_use(const exf_text_inputs *t, exf_recipe *r, const char *key, exf_err *err) EXF_CHECKED;
void exf_text_inputs_free(exf_text_inputs *t);

/* ---- the files that a run reads (recipe_inputs.c) --------------------------------------------------- */

/* Appends "ROLE SHA256 PATH\n" for the recipe and every file that its calibration and its
 * validation read, once in each role: recipe, manifest, source, config, weights, tokenizer, tokenizer-config,
 * tokenizer-python (the constants of a tiktoken.model's), validation-manifest, validation-source.  The tokenizer where
 * a source is text.  Reads every byte of the model; its index is left out, since it only repeats the contents of the shards.
 * A missing file is EXF_IO. */
exf_code exf_inputs_text(const exf_recipe *r, exf_text *out, exf_err *err) EXF_CHECKED;
#endif
