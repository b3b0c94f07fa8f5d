/* model_path.c - see model_path.h. */
#include "model/model_path.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#include <dirent.h>
#include <string.h>

/* ---- a name on a hub ------------------------------------------------------------- */

/* OWNER/MODEL in the hub's letters. */
static int looks_like_hub_name(const char *name)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    size_t owner = strspn(name, letters);
    if (owner == 0 || name[0] == '.' || name[owner] != '/') return 0;
    const char *model = name + owner + 1;
    return *model && *model != '.' && strspn(model, letters) == strlen(model);
}

static exf_code explain_hub_name(const char *name, exf_err *err)
{
    char *owner = NULL;
    exf_code rc;
    int has_owner;
    EXF_TRY(exf_path_dir(&owner, name, err));
    EXF_TRY(exf_path_look(owner, &has_owner, err));
    if (!has_owner)
        rc = exf_fail(err, EXF_USAGE,
                      "%s: no such directory; checkpoints are read from directories. To get the hub's model of this name: "
                      "hf download %s --local-dir models/%s, then --model models/%s",
                      name, name, strchr(name, '/') + 1, strchr(name, '/') + 1);
out:
    exf_mem_free(owner);
    return rc;
}

/* ---- a folder of a hub cache -------------------------------------------------------- */

/* The revision that refs/main names, or NULL.  Caller frees. */
static char *main_revision(const char *dir)
{
    exf_err ignored;
    char *path = NULL, *text = NULL;
    size_t len;
    if (exf_path_join(&path, dir, "refs/main", &ignored) == EXF_OK &&
        exf_file_slurp(path, 256, &text, &len, &ignored) == EXF_OK)
        text[strcspn(text, "\r\n")] = 0;
    exf_mem_free(path);
    return text;
}

/* The snapshot that refs/main names, else the first by name; *best is NULL if there is none.  Caller frees. */
static exf_code choose_snapshot(const char *dir, const char *snapshots, char **best, exf_err *err)
{
    exf_code rc = EXF_OK;
    char *wanted = main_revision(dir);
    DIR *d = opendir(snapshots);
    *best = NULL;
    for (struct dirent *e; d && rc == EXF_OK && (e = readdir(d));) {
        int is_wanted = wanted && strcmp(e->d_name, wanted) == 0;
        int has_wanted = *best && wanted && strcmp(*best, wanted) == 0;
        if (e->d_name[0] == '.' || has_wanted || (*best && !is_wanted && strcmp(e->d_name, *best) > 0)) continue;
        exf_mem_free(*best);
        rc = exf_mem_strdup(best, e->d_name, "snapshot", err);
    }
    if (d) closedir(d);
    exf_mem_free(wanted);
    return rc;
}

static exf_code explain_cache(const char *dir, exf_err *err)
{
    char *snapshots = NULL, *best = NULL;
    exf_code rc;
    int is_directory;
    EXF_TRY(exf_path_join(&snapshots, dir, "snapshots", err));
    EXF_TRY(exf_path_is_directory(snapshots, &is_directory, err));
    if (!is_directory) goto out;
    EXF_TRY(choose_snapshot(dir, snapshots, &best, err));
    if (best)
        rc = exf_fail(err, EXF_USAGE, "%s: is a hub cache's folder of a model; the checkpoint in it is %s/%s", dir, snapshots,
                      best);
out:
    exf_mem_free(snapshots);
    exf_mem_free(best);
    return rc;
}

exf_code exf_model_check_path(const char *dir, exf_err *err)
{
    char *config = NULL;
    exf_code rc;
    int found, is_directory;
    EXF_TRY(exf_path_join(&config, dir, "config.json", err));
    EXF_TRY(exf_path_look(config, &found, err));
    if (found) goto out;
    EXF_TRY(exf_path_is_directory(dir, &is_directory, err));
    EXF_TRY(exf_path_look(dir, &found, err));
    if (is_directory)
        rc = explain_cache(dir, err);
    else if (found)
        rc = exf_fail(err, EXF_USAGE, "%s: is a file; a model is the directory that holds config.json and *.safetensors", dir);
    else if (looks_like_hub_name(dir))
        rc = explain_hub_name(dir, err);
out:
    exf_mem_free(config);
    return rc;
}
