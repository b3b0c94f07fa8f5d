/* recipe.c - see recipe.h. */
#include "projector/solving.h"
#include "tool/recipe.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "export/writer.h"
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
    {NULL, "version", 0, EXF_OPT_FLAG, AT(version), "false", NULL, "Messages", "print the version and exit"},
};

static const exf_opt key_rows[] = {
    {"schema", NULL, 0, EXF_OPT_TEXT, AT(schema), NULL, "NAME", "Recipe", "exfold-recipe/1"},
    {"model.path", "model", 0, EXF_OPT_TEXT, AT(model_path), NULL, "DIR", "Model",
     "checkpoint directory: config.json, *.safetensors, tokenizer.json"},
    {"data.manifest", NULL, 0, EXF_OPT_TEXT, AT(manifest), NULL, "FILE", "Data", "the corpus, schema exfold-manifest/1"},
    {"data.sequences", NULL, 0, EXF_OPT_INT, AT(sequences), "0", "0..", "Data",
     "sequences of the run; 0: as many as the manifest says"},
    {"data.max_tokens", NULL, 0, EXF_OPT_INT, AT(max_tokens), "2048", "1..1048576", "Data", "longest sequence"},
    {"data.min_tokens", NULL, 0, EXF_OPT_INT, AT(min_tokens), "1", "1..1048576", "Data", "shorter pieces of text are dropped"},
    {"data.seed", NULL, 0, EXF_OPT_INT, AT(seed), "42", "0..", "Data", "of the choice of sequences"},
    {"calibrate.pairs", NULL, 0, EXF_OPT_CHOICE, AT(pairs), "corouted", "corouted|common_input", "Calibration",
     "which pairs are observed: of each token's top-K, or all on the same tokens"},
    {"calibrate.observer_tokens", NULL, 0, EXF_OPT_INT, AT(observer_tokens), "64", "1..1048576", "Calibration",
     "common_input: tokens of a sequence that all experts run on"},
    {"calibrate.weighting", NULL, 0, EXF_OPT_CHOICE, AT(weighting), "source_norm", "source_norm|none|router", "Calibration",
     "weight of a token in the sums of a pair"},
    {"calibrate.ridge", NULL, 0, EXF_OPT_REAL, AT(ridge), "1e-3", "0..", "Calibration", "lambda in S = dot / (target_sq + lambda)"},
    {"calibrate.clip", NULL, 0, EXF_OPT_TEXT_LIST, AT(clip), "-4,4", "MIN,MAX", "Calibration", "range of scalars, or none"},
    {"calibrate.projectors", NULL, 0, EXF_OPT_TEXT_LIST, AT(projectors), "pair", "NAMES", "Calibration", "which tables are solved"},
    {"calibrate.ranks", NULL, 0, EXF_OPT_INT_LIST, AT(ranks), "8,16", "RANKS", "Calibration", "of projector lowrank, 1 to 32"},
    {"calibrate.vector_pairs", NULL, 0, EXF_OPT_INT, AT(vector_pairs), "1024", "1..", "Calibration",
     "directed pairs a layer that get a diagonal or lowrank projector"},
    {"calibrate.samples", NULL, 0, EXF_OPT_INT, AT(samples), "65536", "1..16777216", "Calibration",
     "residuals a layer from which the basis of lowrank is made"},
    {"calibrate.seed", NULL, 0, EXF_OPT_INT, AT(basis_seed), "1", "0..", "Calibration", "of those samples and of the basis"},
    {"calibrate.min_pair_tokens", NULL, 0, EXF_OPT_INT, AT(min_pair_tokens), "1", "1..", "Calibration",
     "a pair seen by fewer tokens counts as unobserved"},
    {"coverage.fail_below", NULL, 0, EXF_OPT_REAL, AT(coverage_fail_below), "0", "0..1", "Calibration",
     "exit with status 10 when a layer's share of observed pairs is below"},
    {"pools", NULL, 0, EXF_OPT_INT_LIST, AT(pools), "[]", "SIZES", "Calibration", "sizes of static decode pools"},
    {"runtime.backend", "backend", 0, EXF_OPT_CHOICE, AT(backend), "auto", "auto|cpu|cuda", "Runtime",
     "where the forward pass runs"},
    {"runtime.threads", "threads", 't', EXF_OPT_INT, AT(threads), "0", "0..4096", "Runtime", "worker threads; 0: all processors"},
    {"runtime.compute", NULL, 0, EXF_OPT_CHOICE, AT(compute), "f32", "f32|bf16", "Runtime",
     "matrix products of the forward pass; bf16 on cuda only"},
    {"runtime.max_gpu_memory", "max-gpu-memory", 0, EXF_OPT_BYTES, AT(max_gpu_memory), "0", "SIZE", "Runtime",
     "most that a run holds in the GPU's memory, such as 8GiB; 0: what is free"},
    {"runtime.io", "io", 0, EXF_OPT_CHOICE, AT(io), "pread", "pread|direct|mmap", "Runtime",
     "how weights are read: by the system's cache, past it, or from a map"},
    {"runtime.streams", NULL, 0, EXF_OPT_INT, AT(streams), "0", "0..64", "Runtime",
     "sequences that a GPU mixes side by side; 0: 4, fewer where memory is short"},
    {"runtime.readers", NULL, 0, EXF_OPT_INT, AT(readers), "0", "0..64", "Runtime",
     "threads that read weights for a GPU; 0: at most 8"},
    {"output.directory", "output", 'o', EXF_OPT_TEXT, AT(output_directory), NULL, "DIR", "Output",
     "where files are written; made if missing"},
    {"output.targets", NULL, 0, EXF_OPT_TEXT_LIST, AT(targets), "safetensors", "NAMES", "Output",
     "export formats, as exfold-export --help lists them"},
    {"card.base_model", NULL, 0, EXF_OPT_TEXT, AT(base_model), NULL, "NAME", "Model card",
     "the model's name on a hub: Qwen/Qwen3-30B-A3B"},
    {"card.revision", NULL, 0, EXF_OPT_TEXT, AT(revision), NULL, "COMMIT", "Model card", "of the base model"},
    {"card.datasets", NULL, 0, EXF_OPT_TEXT_LIST, AT(datasets), NULL, "NAMES", "Model card",
     "names of the calibration data on a hub"},
    {"validate.tables", "tables", 0, EXF_OPT_TEXT, AT(validate_tables), NULL, "FILE", "Validation",
     "tables to validate; default: tables.h5 in the output directory"},
    {"validate.manifest", NULL, 0, EXF_OPT_TEXT, AT(validate_manifest), NULL, "FILE", "Validation",
     "the corpus to validate on, schema exfold-manifest/1"},
    {"validate.sequences", NULL, 0, EXF_OPT_INT, AT(validate_sequences), "0", "0..", "Validation",
     "sequences; 0: as many as the manifest says"},
    {"validate.max_tokens", NULL, 0, EXF_OPT_INT, AT(validate_max_tokens), "0", "0..1048576", "Validation",
     "longest sequence; 0: data.max_tokens"},
    {"validate.variants", "variants", 0, EXF_OPT_WORD_LIST, AT(variants), NULL, "\"A B ...\"", "Validation",
     "ways to run: P4, P4:projector=joint, top4:drop, D64:pool=static, reap64, sere4:rho=0.1, P4+D64, ..."},
    {"validate.decode_batch", NULL, 0, EXF_OPT_INT, AT(decode_batch), "16", "1..", "Validation",
     "sequences that decode side by side"},
    {"validate.prefill_tokens", NULL, 0, EXF_OPT_INT, AT(prefill_tokens), "0", "0..1048576", "Validation",
     "positions below are prefill, the rest decode; 0: every position is both"},
    {"validate.fail_above", "fail-above", 0, EXF_OPT_WORD_LIST, AT(fail_above), "[]", "\"[VARIANT:]METRIC=X ...\"", "Validation",
     "exit with status 10 when a variant's kl, kl_p99, ppl, flips, ... is above X"},
};

/* Paths are relative to the recipe's file; this order is that of exf_recipe.given. */
static const struct {
    const char *key;
    size_t offset;
} path_rows[EXF_RECIPE_PATHS] = {
    {"model.path", AT(model_path)}, {"data.manifest", AT(manifest)}, {"output.directory", AT(output_directory)},
    {"validate.tables", AT(validate_tables)}, {"validate.manifest", AT(validate_manifest)},
};

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

/* ---- reading ---------------------------------------------------------------- */

typedef struct {
    exf_recipe *recipe;
    const char *path;
} reading;

static exf_code set_list(const reading *r, const char *key, const exf_yaml *node, const char *where, exf_err *err)
{
    const char **item = NULL;
    exf_code rc = exf_mem_new(&item, node->n, sizeof *item, "recipe list", err);
    for (size_t i = 0; rc == EXF_OK && i < node->n; i++) {
        item[i] = node->child[i]->text;
        if (node->child[i]->kind != EXF_YAML_SCALAR)
            rc = exf_fail(err, EXF_USAGE, "%s: %s: item %zu is %s, expected a scalar", where, key, i + 1,
                          exf_yaml_kind_name(node->child[i]));
    }
    if (rc == EXF_OK) rc = exf_opts_set_list(r->recipe->opts, EXF_OPT_BY_RECIPE, key, item, node->n, where, err);
    exf_mem_free(item);
    return rc;
}

static exf_code set_node(const reading *r, const char *key, const exf_yaml *node, exf_err *err);

/* Each member of a map under its dotted key. */
static exf_code set_map(const reading *r, const char *prefix, const exf_yaml *map, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < map->n; i++) {
        exf_text key = {0};
        rc = exf_text_addf(&key, err, "%s%s%s", prefix, *prefix ? "." : "", map->key[i]);
        if (rc == EXF_OK) rc = set_node(r, key.s, map->child[i], err);
        exf_text_free(&key);
    }
    return rc;
}

static exf_code set_node(const reading *r, const char *key, const exf_yaml *node, exf_err *err)
{
    exf_text where = {0};
    exf_code rc = exf_text_addf(&where, err, "%s:%d", r->path, node->line);
    if (rc == EXF_OK) {
        switch (node->kind) {
        case EXF_YAML_MAP: rc = set_map(r, key, node, err); break;
        case EXF_YAML_LIST: rc = set_list(r, key, node, where.s, err); break;
        case EXF_YAML_SCALAR: rc = exf_opts_set(r->recipe->opts, EXF_OPT_BY_RECIPE, key, node->text, where.s, err); break;
        }
    }
    exf_text_free(&where);
    return rc;
}

/* A path that the recipe gave is relative to the recipe's directory. */
static exf_code rebase(exf_recipe *r, const char *key, char **path, char **given, const char *dir, exf_err *err)
{
    if (!*path || exf_opts_given(r->opts, key, EXF_OPT_BY_ARGV)) return EXF_OK;
    char *joined;
    exf_code rc = exf_path_join(&joined, dir, *path, err);
    if (rc != EXF_OK) return rc;
    *given = *path;
    *path = joined;
    return EXF_OK;
}

exf_code exf_recipe_read(exf_recipe *r, const char *path, exf_err *err)
{
    exf_code rc;
    exf_yaml *root = NULL;
    char *dir = NULL;
    reading reader = {r, path};
    EXF_TRY(exf_yaml_load(&root, path, err));
    const exf_yaml *schema = exf_yaml_get(root, "schema");
    if (root->kind != EXF_YAML_MAP)
        rc = exf_fail(err, EXF_USAGE, "%s: is %s, expected a map with schema: exfold-recipe/1", path, exf_yaml_kind_name(root));
    else if (!schema || schema->kind != EXF_YAML_SCALAR || strcmp(schema->text, "exfold-recipe/1") != 0)
        rc = exf_fail(err, EXF_USAGE, "%s: schema is %s, expected exfold-recipe/1", path,
                      schema && schema->kind == EXF_YAML_SCALAR ? schema->text : "missing");
    if (rc != EXF_OK) goto out;
    EXF_TRY(set_map(&reader, "", root, err));
    EXF_TRY(exf_path_dir(&dir, path, err));
    for (int i = 0; i < EXF_RECIPE_PATHS; i++)
        EXF_TRY(rebase(r, path_rows[i].key, (char **)((char *)r + path_rows[i].offset), &r->given[i], dir, err));
out:
    exf_yaml_free(root);
    exf_mem_free(dir);
    return rc;
}

/* ---- checks across keys ------------------------------------------------------- */

static const char *source_name(const exf_recipe *r)
{
    return r->recipe_file ? r->recipe_file : "command line";
}

static exf_code require(const exf_recipe *r, const char *value, const char *key, exf_err *err)
{
    if (value && *value) return EXF_OK;
    return exf_fail(err, EXF_USAGE, "%s: %s is missing", source_name(r), key);
}

exf_code exf_recipe_check_model(const exf_recipe *r, exf_err *err)
{
    return require(r, r->model_path, "model.path", err);
}

exf_code exf_recipe_check_data(const exf_recipe *r, exf_err *err)
{
    exf_code rc = require(r, r->manifest, "data.manifest", err);
    if (rc == EXF_OK && r->min_tokens > r->max_tokens)
        rc = exf_fail(err, EXF_USAGE, "%s: data.min_tokens is %lld, data.max_tokens %lld", source_name(r), (long long)r->min_tokens,
                      (long long)r->max_tokens);
    return rc;
}

exf_code exf_recipe_check_output(const exf_recipe *r, exf_err *err)
{
    return require(r, r->output_directory, "output.directory (or --output DIR)", err);
}

static exf_code parse_clip(const exf_recipe *r, exf_solve_options *o, exf_err *err)
{
    const exf_text_list *c = &r->clip;
    exf_scalar_rule *s = &o->rule;
    s->clip = !(c->n == 1 && strcmp(c->item[0], "none") == 0);
    if (!s->clip) return EXF_OK;
    if (c->n != 2 || !exf_parse_f64(c->item[0], &s->clip_min) || !exf_parse_f64(c->item[1], &s->clip_max) ||
        s->clip_min >= s->clip_max)
        return exf_fail(err, EXF_USAGE, "%s: calibrate.clip: expected [MIN, MAX] with MIN below MAX, or none", source_name(r));
    return EXF_OK;
}

static exf_code refuse_twice(const exf_recipe *r, const exf_text_list *list, const char *key, exf_err *err)
{
    for (size_t i = 0; i < list->n; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(list->item[i], list->item[k]) == 0)
                return exf_fail(err, EXF_USAGE, "%s: %s: %s stands twice", source_name(r), key, list->item[i]);
    return EXF_OK;
}

exf_code exf_recipe_check_targets(const exf_recipe *r, exf_err *err)
{
    const exf_writer *w;
    exf_code rc = refuse_twice(r, &r->targets, "output.targets", err);
    for (size_t i = 0; rc == EXF_OK && i < r->targets.n; i++) {
        rc = exf_writer_require(r->targets.item[i], &w, err);
        if (rc != EXF_OK) exf_err_prefix(err, "%s: ", source_name(r));
    }
    return rc;
}

exf_code exf_recipe_check_pools(const exf_recipe *r, int n_experts, exf_err *err)
{
    for (size_t i = 0; i < r->pools.n; i++)
        if (r->pools.item[i] < 1 || r->pools.item[i] > n_experts)
            return exf_fail(err, EXF_USAGE, "%s: pools: %lld experts, the model has %d", source_name(r),
                            (long long)r->pools.item[i], n_experts);
    return EXF_OK;
}

exf_code exf_recipe_solve_options(const exf_recipe *r, exf_solve_options *o, exf_err *err)
{
    *o = (exf_solve_options){
        .rule = {.ridge = r->ridge},
        .projectors = (const char *const *)r->projectors.item,
        .n_projectors = r->projectors.n,
        .min_pair_tokens = (uint64_t)r->min_pair_tokens,
        .ranks = r->ranks.item,
        .n_ranks = r->ranks.n,
        .pools = r->pools.item,
        .n_pools = r->pools.n,
    };
    if (r->projectors.n == 0) return exf_fail(err, EXF_USAGE, "%s: calibrate.projectors: names none", source_name(r));
    for (size_t i = 0; i < r->pools.n; i++)
        for (size_t k = 0; k < i; k++)
            if (r->pools.item[i] == r->pools.item[k])
                return exf_fail(err, EXF_USAGE, "%s: pools: %lld stands twice", source_name(r), (long long)r->pools.item[i]);
    exf_code rc;
    for (size_t i = 0; i < r->ranks.n; i++)
        for (size_t k = 0; k < i; k++)
            if (r->ranks.item[i] == r->ranks.item[k])
                return exf_fail(err, EXF_USAGE, "%s: calibrate.ranks: %lld stands twice", source_name(r),
                                (long long)r->ranks.item[i]);
    EXF_TRY(refuse_twice(r, &r->projectors, "calibrate.projectors", err));
    EXF_TRY(parse_clip(r, o, err));
    rc = exf_solve_check(o, err);
    if (rc != EXF_OK) exf_err_prefix(err, "%s: ", source_name(r));
out:
    return rc;
}

/* EXF_OBSERVES_* of all projectors that the recipe names; they are known. */
static unsigned observed(const exf_text_list *projectors)
{
    unsigned all = 0;
    for (size_t i = 0; i < projectors->n; i++) all |= exf_projector_find(projectors->item[i])->observes;
    return all;
}

exf_code exf_recipe_accumulate_options(const exf_recipe *r, exf_accumulate_options *o, exf_err *err)
{
    exf_solve_options solve;
    exf_code rc = exf_recipe_solve_options(r, &solve, err);
    if (rc != EXF_OK) return rc;
    *o = (exf_accumulate_options){
        .weighting = (exf_weighting)r->weighting,
        .common_input_tokens = r->pairs == EXF_PAIRS_COMMON_INPUT ? (int)r->observer_tokens : 0,
        .diagonal = (observed(&r->projectors) & EXF_OBSERVES_ELEMENTS) != 0,
        .lowrank = (observed(&r->projectors) & EXF_OBSERVES_BASIS) != 0,
        .vector_pairs = r->vector_pairs,
        .samples = r->samples,
        .seed = (uint64_t)r->basis_seed,
        .rule = solve.rule,
    };
    rc = exf_accumulate_check(o, err);
    if (rc != EXF_OK) exf_err_prefix(err, "%s: ", source_name(r));
    return rc;
}

/* ---- the resolved recipe --------------------------------------------------------- */

/* Length of a character that would end or fold a line inside quotes, or that no YAML
 * file may hold: 0, or its bytes at s; *escape its name in double quotes, NULL where
 * that is \x and the last byte. */
static size_t breaks_line(const char *s, const char **escape)
{
    static const struct { const char *bytes, *escape; } breaks[] = {{"\xc2\x85", "\\N"}, {"\xe2\x80\xa8", "\\L"},
                                                                    {"\xe2\x80\xa9", "\\P"},
                                                                    {"\xef\xbf\xbe", "\\uFFFE"}, {"\xef\xbf\xbf", "\\uFFFF"}};
    for (size_t i = 0; i < sizeof breaks / sizeof *breaks; i++) {
        *escape = breaks[i].escape;
        if (strncmp(s, breaks[i].bytes, strlen(breaks[i].bytes)) == 0) return strlen(breaks[i].bytes);
    }
    *escape = NULL;
    if ((unsigned char)*s < ' ' || *s == 0x7f) return *s != 0;
    return (unsigned char)s[0] == 0xc2 && (unsigned char)s[1] < 0xa0 ? 2 : 0;
}

/* In double quotes, in which everything can be spelled. */
static exf_code add_escaped(exf_text *out, const char *s, exf_err *err)
{
    const char *escape;
    exf_code rc;
    EXF_TRY(exf_text_add(out, "\"", 1, err));
    while (*s) {
        size_t n = breaks_line(s, &escape);
        if (!n)
            rc = exf_text_addf(out, err, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
        else
            rc = escape ? exf_text_addf(out, err, "%s", escape)
                        : exf_text_addf(out, err, "\\x%02X", (unsigned)(unsigned char)s[n - 1]);
        if (rc != EXF_OK) goto out;
        s += n ? n : 1;
    }
    EXF_TRY(exf_text_add(out, "\"", 1, err));
out:
    return rc;
}

/* A scalar that needs no quotes in YAML stands plain; any other that fits a line is
 * quoted the single way, in which only the quote itself is doubled. */
static exf_code add_scalar(exf_text *out, const char *s, exf_err *err)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./+-";
    const char *escape;
    exf_code rc;
    if (*s && strspn(s, plain) == strlen(s) && strcmp(s, "-") != 0) return exf_text_addf(out, err, "%s", s);
    for (const char *p = s; *p; p++)
        if (breaks_line(p, &escape)) return add_escaped(out, s, err);
    EXF_TRY(exf_text_add(out, "'", 1, err));
    for (; *s; s++) EXF_TRY(exf_text_addf(out, err, *s == '\'' ? "''" : "%c", *s));
    EXF_TRY(exf_text_add(out, "'", 1, err));
out:
    return rc;
}

static const char *as_given(const exf_recipe *r, const exf_opt *row, const char *value)
{
    for (int i = 0; i < EXF_RECIPE_PATHS; i++)
        if (row->offset == path_rows[i].offset && r->given[i]) return r->given[i];
    return value;
}

/* What is joined by a character as a YAML list, each item quoted if it must be. */
static exf_code add_items(const char *value, char joined_by, exf_text *out, exf_err *err)
{
    const char end[2] = {joined_by, 0};
    exf_code rc;
    char *word = NULL;
    EXF_TRY(exf_text_add(out, "[", 1, err));
    for (const char *p = value; *p;) {
        size_t n = strcspn(p, end);
        if (p != value) EXF_TRY(exf_text_add(out, ", ", joined_by == ',' ? 1 : 2, err));
        EXF_TRY(exf_mem_dup(&word, p, n, "recipe list", err));
        EXF_TRY(add_scalar(out, word, err));
        exf_mem_free(word);
        word = NULL;
        p += n + (p[n] == joined_by);
    }
    EXF_TRY(exf_text_add(out, "]", 1, err));
out:
    exf_mem_free(word);
    return rc;
}

static exf_code add_value(const exf_recipe *r, const exf_opt *row, const char *value, exf_text *out, exf_err *err)
{
    if (row->type == EXF_OPT_WORD_LIST && value[0] != '[') return add_items(value, ' ', out, err);
    if (row->type == EXF_OPT_TEXT_LIST && value[0] != '[') return add_items(value, ',', out, err);
    int is_list = row->type == EXF_OPT_TEXT_LIST || row->type == EXF_OPT_INT_LIST || row->type == EXF_OPT_WORD_LIST;
    if (!is_list) return add_scalar(out, as_given(r, row, value), err);
    return value[0] == '[' ? exf_text_addf(out, err, "%s", value) : exf_text_addf(out, err, "[%s]", value);
}

exf_code exf_recipe_text(const exf_recipe *r, exf_text *out, exf_err *err)
{
    char section[32] = "";
    exf_code rc = EXF_OK;
    size_t n_common, n_keys;
    exf_recipe_global_rows(&n_common);
    const exf_opt *rows = exf_recipe_key_rows(&n_keys);
    for (size_t i = 0; rc == EXF_OK && i < n_keys; i++) {
        exf_text value = {0};
        const char *dot = strchr(rows[i].key, '.');
        rc = exf_opts_value(r->opts, n_common + i, &value, err);
        if (rc == EXF_OK && value.len) {
            size_t n = dot ? (size_t)(dot - rows[i].key) : 0;
            if (dot && (strncmp(section, rows[i].key, n) != 0 || section[n])) {
                memcpy(section, rows[i].key, n);
                section[n] = 0;
                rc = exf_text_addf(out, err, "%s:\n", section);
            }
            if (rc == EXF_OK) rc = exf_text_addf(out, err, "%s%s: ", dot ? "  " : "", dot ? dot + 1 : rows[i].key);
            if (rc == EXF_OK) rc = add_value(r, &rows[i], value.s, out, err);
            if (rc == EXF_OK) rc = exf_text_add(out, "\n", 1, err);
        }
        exf_text_free(&value);
    }
    return rc;
}

void exf_recipe_free(exf_recipe *r)
{
    exf_opts_free(r->opts);
    for (int i = 0; i < EXF_RECIPE_PATHS; i++) exf_mem_free(r->given[i]);
}
