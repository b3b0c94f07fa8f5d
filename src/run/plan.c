/* plan.c - checks where the outputs go, and prints a plan as lines or JSON; see plan.h. */
#include "run/plan.h"

#include "base/mem.h"
#include "format/json.h"
#include "kernels/backend.h"
#include "recipe/run_directory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- where the outputs go -------------------------------------------------------------------- */

/* Cuts the last name off; "." where it was the only one. */
static void cut_name(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash)
        slash[slash == path] = 0;
    else
        memcpy(path, ".", 2); /* no path is shorter */
}

exf_code exf_plan_check_output(const exf_plan *p, exf_err *err)
{
    char *path = NULL, need[16], have[16];
    struct stat st;
    struct statvfs fs;
    exf_code rc;
    EXF_TRY(exf_mem_strdup(&path, p->output[0] ? p->output : ".", "path", err));
    if (p->is_file) cut_name(path);
    while (stat(path, &st) != 0) { /* up to a directory that exists */
        if ((errno != ENOENT && errno != ENOTDIR) || strcmp(path, ".") == 0) {
            rc = exf_fail_errno(err, errno, "%s: cannot look up %s", p->output, path);
            goto out;
        }
        cut_name(path);
    }
    if (!S_ISDIR(st.st_mode)) {
        rc = exf_fail(err, EXF_IO, "%s: cannot be made: %s is no directory", p->output, path);
        goto out;
    }
    if (access(path, W_OK | X_OK) != 0) {
        rc = exf_fail(err, EXF_IO, "%s: cannot be written: %s: %s", p->output, path, strerror(errno));
        goto out;
    }
    if (statvfs(path, &fs) != 0) goto out; /* a file system that does not report its free space may have enough */
    double room = (double)fs.f_bavail * (double)fs.f_frsize;
    if (room < (double)p->disk)
        rc = exf_fail(err, EXF_NOSPACE, "%s: the outputs take about %s (%" PRIu64 " bytes), %s has %s free", p->output,
                      exf_human_bytes(need, sizeof need, (double)p->disk), p->disk, path, exf_human_bytes(have, sizeof have, room));
out:
    exf_mem_free(path);
    return rc;
}

/* ---- lines --------------------------------------------------------------------------------- */

static void print_lines(const exf_plan *p, uint64_t memory)
{
    char b[16];
    const exf_backend *backend = p->options.backend;
    printf("tokens     %zu in %zu sequences of at most %d%s%s%s\n", p->batch->n_tokens, p->batch->n_sequences,
           p->batch->max_tokens, p->missing ? ", assumed: " : "", p->missing ? p->missing : "", p->missing ? " is not there" : "");
    printf("weights    %s (%" PRIu64 " bytes), each byte read once", exf_human_bytes(b, sizeof b, (double)p->weight_bytes),
           p->weight_bytes);
    if (p->held.reads > 1) printf(", but routed experts %d times: a layer's do not fit the GPU at once", p->held.reads);
    printf("%s\n", p->model->part == EXF_MODEL_CONFIG ? "; counted from config.json: no weights are there" : "");
    printf("compute    %.3g GFLOP on %d %s of %.0f GFLOP/s (measured now)\n", p->flops / 1e9, p->workers,
           backend->gpu ? "GPU" : "threads", p->rate / 1e9);
    printf("time       %s %s%s\n", !p->measured ? "at least" : p->part.pilot > 0 ? "at most" : "about",
           exf_human_seconds(b, sizeof b, p->seconds),
           p->measured ? " (a sample of the run was measured)" : "");
    if (p->measured)
        printf("           start %.3g s, opening the pass %.3g s, weights %.3g s%s, work on tokens %.3g s, layers' ends %.3g s\n",
               p->part.start, p->part.once, p->part.weights, backend->gpu ? " (beside the work)" : "", p->part.tokens,
               p->part.ends);
    if (p->part.pilot > 0)
        printf("           of that %s for all variants on %zu of %zu sequences; those that cannot hold the limit are left out of "
               "the rest\n", exf_human_seconds(b, sizeof b, p->part.pilot), p->pilot.sequences, p->batch->n_sequences);
    if (p->not_counted) printf("           not counted: %s\n", p->not_counted);
    printf("RAM        about %s\n", exf_human_bytes(b, sizeof b, (double)memory));
    if (!backend->gpu)
        printf("GPU        none: backend %s\n", backend->name);
    else
        printf("GPU        about %s on %s; hidden states in ", exf_human_bytes(b, sizeof b, (double)p->held.device),
               backend->device());
    if (backend->gpu && p->held.window)
        printf("pinned RAM, at most %zu tokens of them on the GPU\n", p->held.window);
    else if (backend->gpu)
        printf("its memory\n");
    printf("disk       about %s\n", exf_human_bytes(b, sizeof b, (double)p->disk));
    if (p->resume) printf("resume     at most %s of disk while it runs\n", exf_human_bytes(b, sizeof b, (double)p->resume));
}

static void print_scale(const exf_scale *s, int measured)
{
    char t[16];
    printf("scale      %d ranks on %d nodes: %s %s; %.3g s of work on the fullest rank's %.1f %% of the tokens\n", s->ranks,
           s->nodes, measured || s->rates.compute > 0 ? "about" : "at least", exf_human_seconds(t, sizeof t, s->seconds),
           s->tokens, 100 * s->most_tokens);
    printf("           weights %.3g s a node, sums of all ranks %.3g s (network %.3g GB/s%s), start and opening %.3g s, "
           "layers' ends %.3g s\n",
           s->weights, s->sums, s->rates.network / 1e9, s->assumed_network ? ", assumed" : "", s->start + s->once, s->ends);
    printf("           writing statistics %.3g s, other files %.3g s (%.3g GB/s%s)\n", s->statistics, s->files,
           s->rates.write / 1e9, s->assumed_write ? ", assumed" : "");
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static void add_scale(exf_jw *w, const exf_scale *s)
{
    exf_jw_open(w, "scale", '{');
    exf_jw_int(w, "ranks", s->ranks);
    exf_jw_int(w, "nodes", s->nodes);
    exf_jw_real(w, "seconds", s->seconds);
    exf_jw_real(w, "most_tokens", s->most_tokens);
    exf_jw_real(w, "tokens_seconds", s->tokens);
    exf_jw_real(w, "weights_seconds", s->weights);
    exf_jw_real(w, "sums_seconds", s->sums);
    exf_jw_real(w, "start_seconds", s->start);
    exf_jw_real(w, "once_seconds", s->once);
    exf_jw_real(w, "ends_seconds", s->ends);
    exf_jw_real(w, "network_bytes_per_second", s->rates.network);
    exf_jw_bool(w, "network_assumed", s->assumed_network);
    exf_jw_real(w, "statistics_seconds", s->statistics);
    exf_jw_real(w, "files_seconds", s->files);
    exf_jw_real(w, "write_bytes_per_second", s->rates.write);
    exf_jw_bool(w, "write_assumed", s->assumed_write);
    exf_jw_close(w);
}

static exf_code make_json(const exf_plan *p, const exf_scale *scale, uint64_t memory, exf_text *out, exf_err *err)
{
    exf_jw w = {.depth = 0};
    exf_jw_open(&w, NULL, '{');
    exf_jw_text(&w, "schema", "exfold-plan/2");
    exf_jw_count(&w, "tokens", p->batch->n_tokens);
    exf_jw_count(&w, "sequences", p->batch->n_sequences);
    exf_jw_int(&w, "max_tokens", p->batch->max_tokens);
    exf_jw_count(&w, "weight_bytes", p->weight_bytes);
    exf_jw_int(&w, "expert_reads", p->held.reads);
    exf_jw_bool(&w, "weights_present", p->model->part != EXF_MODEL_CONFIG);
    exf_jw_text(&w, "backend", p->options.backend->name);
    exf_jw_text(&w, "device", p->options.backend->device());
    exf_jw_int(&w, "workers", p->workers);
    exf_jw_real(&w, "flops", p->flops);
    exf_jw_real(&w, "product_flops_per_second", p->rate);
    exf_jw_real(&w, "seconds", p->seconds);
    exf_jw_bool(&w, "seconds_measured", p->measured);
    exf_jw_open(&w, "terms", '{');
    exf_jw_real(&w, "start_seconds", p->part.start);
    exf_jw_real(&w, "once_seconds", p->part.once);
    exf_jw_real(&w, "weights_seconds", p->part.weights);
    exf_jw_real(&w, "tokens_seconds", p->part.tokens);
    exf_jw_real(&w, "ends_seconds", p->part.ends);
    exf_jw_real(&w, "pilot_seconds", p->part.pilot);
    exf_jw_close(&w);
    exf_jw_text(&w, "not_counted", p->not_counted ? p->not_counted : "");
    exf_jw_count(&w, "ram_bytes", memory);
    exf_jw_count(&w, "gpu_bytes", p->held.device);
    exf_jw_count(&w, "disk_bytes", p->disk);
    exf_jw_count(&w, "resume_bytes", p->resume);
    exf_jw_text(&w, "output", p->output);
    if (scale->ranks) add_scale(&w, scale);
    exf_jw_close(&w);
    return exf_jw_end(&w, out, err);
}

/* ---- the plan ------------------------------------------------------------------------------- */

exf_code exf_plan_check_json(const exf_recipe *r, exf_err *err)
{
    if (!r->json_path || r->dry_run) return exf_scale_check(r, err);
    return exf_fail(err, EXF_USAGE, "--json: is where the plan of a --dry-run goes; give both or neither");
}

exf_code exf_plan_tell(const exf_plan *p, const exf_recipe *r, exf_err *err)
{
    uint64_t memory = p->process + p->host + p->held.host;
    exf_text text = {0};
    exf_run_directory dir = {0};
    exf_scale scale = {.ranks = 0};
    exf_code rc = EXF_OK;
    if (r->plan_ranks) EXF_TRY(exf_scale_predict(&scale, p, r, err));
    if (!r->json_path) {
        print_lines(p, memory);
        if (scale.ranks) print_scale(&scale, p->measured);
        goto out;
    }
    EXF_TRY(make_json(p, &scale, memory, &text, err));
    if (strcmp(r->json_path, "-") == 0) {
        fputs(text.s, stdout);
        goto out;
    }
    EXF_TRY(exf_run_directory_of_file(&dir, r->json_path, err));
    rc = exf_write_announced(r->json_path, r->force, text.s, text.len, err);
out:
    exf_run_directory_close(&dir, 0);
    exf_text_free(&text);
    return rc;
}
