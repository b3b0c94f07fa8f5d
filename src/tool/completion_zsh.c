/* completion_zsh.c - zsh completions from an option table, for _arguments; see manual.h. */
#include "tool/completion.h"

#include "tool/programs.h"

#include <string.h>

/* Text inside '...' of an _arguments specification: brackets, colons and quotes mean something there. */
static exf_code add_escaped(exf_text *out, const char *s, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (; *s && rc == EXF_OK; s++) {
        if (*s == '\'')
            rc = exf_text_addf(out, err, "'\\''");
        else
            rc = exf_text_addf(out, err, "%s%c", strchr("[]:\\", *s) ? "\\" : "", *s);
    }
    return rc;
}

/* Adds the action by which _arguments completes the value: "(a b)", "_files -/", "_files", or nothing. */
static exf_code add_action(const exf_opt *row, exf_text *out, exf_err *err)
{
    switch (exf_completion_value(row)) {
    case EXF_VALUE_WORDS: {
        exf_code rc = exf_text_add(out, "(", 1, err);
        for (const char *c = exf_completion_words(row); *c && rc == EXF_OK; c++)
            rc = exf_text_add(out, *c == '|' ? " " : c, 1, err);
        return rc == EXF_OK ? exf_text_add(out, ")", 1, err) : rc;
    }
    case EXF_VALUE_DIRECTORY: return exf_text_addf(out, err, "_files -/");
    case EXF_VALUE_FILE: return exf_text_addf(out, err, "_files");
    case EXF_VALUE_FREE: break;
    }
    return exf_text_addf(out, err, " ");
}

/* [help]:what:action */
static exf_code add_help(const exf_opt *row, exf_text *out, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_text_addf(out, err, "["));
    EXF_TRY(add_escaped(out, row->help ? row->help : "", err));
    EXF_TRY(exf_text_addf(out, err, "]"));
    if (row->type == EXF_OPT_FLAG) return EXF_OK;
    EXF_TRY(exf_text_addf(out, err, ":"));
    EXF_TRY(add_escaped(out, exf_opt_placeholder(row), err));
    EXF_TRY(exf_text_addf(out, err, ":"));
    rc = add_action(row, out, err);
out:
    return rc;
}

/* '(-o --output)'{-o,--output}'[help]:DIR:_files -/' */
static exf_code add_flag(const exf_opt *row, exf_text *out, exf_err *err)
{
    exf_code rc;
    const char *gap = row->type == EXF_OPT_FLAG ? "" : "=";
    int is_on = row->type == EXF_OPT_FLAG && row->fallback && strcmp(row->fallback, "true") == 0;
    EXF_TRY(exf_text_addf(out, err, "        "));
    if (row->letter) {
        EXF_TRY(exf_text_addf(out, err, "'(-%c --%s)'{-%c%s,--%s%s}'", row->letter, row->flag, row->letter, *gap ? "+" : "",
                              row->flag, gap));
    } else if (is_on) {
        EXF_TRY(exf_text_addf(out, err, "'(--%s --no-%s)'{--%s,--no-%s}'", row->flag, row->flag, row->flag, row->flag));
    } else {
        EXF_TRY(exf_text_addf(out, err, "'%s--%s%s", row->type == EXF_OPT_FILES ? "*" : "", row->flag, gap));
    }
    EXF_TRY(add_help(row, out, err));
    rc = exf_text_addf(out, err, "' \\\n");
out:
    return rc;
}

/* The values of the keys after --set. */
static exf_code add_keys(const exf_opt *rows, size_t n, exf_text *out, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_text_addf(out, err, "    [[ $state == set ]] || return\n    if ! compset -P '*='; then\n        compadd -S = --"));
    for (size_t i = 0; i < n; i++)
        if (rows[i].key) EXF_TRY(exf_text_addf(out, err, " %s", rows[i].key));
    EXF_TRY(exf_text_addf(out, err, "\n        return\n    fi\n    case ${${IPREFIX%%=}##*=} in\n"));
    for (size_t i = 0; i < n; i++) {
        exf_completion_kind kind = exf_completion_value(&rows[i]);
        if (!rows[i].key || kind == EXF_VALUE_FREE) continue;
        EXF_TRY(exf_text_addf(out, err, "    %s) %s", rows[i].key, kind == EXF_VALUE_WORDS ? "compadd --" : ""));
        if (kind != EXF_VALUE_WORDS) EXF_TRY(add_action(&rows[i], out, err));
        for (const char *c = kind == EXF_VALUE_WORDS ? exf_completion_words(&rows[i]) : ""; *c; c++)
            EXF_TRY(exf_text_addf(out, err, "%s%c", c == exf_completion_words(&rows[i]) ? " " : "", *c == '|' ? ' ' : *c));
        EXF_TRY(exf_text_addf(out, err, " ;;\n"));
    }
    rc = exf_text_addf(out, err, "    esac\n");
out:
    return rc;
}

/* A function for the first argument: a command or a file. */
static exf_code add_first(const exf_program *p, const char *files, exf_text *out, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_text_addf(out, err, "_%s_first()\n{\n    _alternative 'commands:command:(", p->name));
    EXF_TRY(exf_completion_commands(p, out, err));
    rc = exf_text_addf(out, err, ")' 'files:file:_files -g \"%s\"'\n}\n", files);
out:
    return rc;
}

/* `exfold calibrate ...` is completed as exfold-calibrate is. */
static exf_code add_others(exf_text *out, exf_err *err)
{
    const exf_program *p;
    exf_code rc;
    EXF_TRY(exf_text_addf(out, err, "_exfold()\n{\n    local -a programs\n    programs=("));
    for (size_t i = 0; (p = exf_program_at(i)); i++) {
        EXF_TRY(exf_text_addf(out, err, "'%s:", p->name + strlen("exfold-")));
        EXF_TRY(add_escaped(out, p->brief, err));
        EXF_TRY(exf_text_addf(out, err, "' "));
    }
    rc = exf_text_addf(out, err, "%s",
                       "'help:explains a program')\n"
                       "    if ((CURRENT == 2)) || [[ $words[2] == help ]]; then\n"
                       "        _describe -t programs program programs\n"
                       "        return\n"
                       "    fi\n"
                       "    local name=_exfold-$words[2]\n"
                       "    words=(exfold-$words[2] \"${words[@]:2}\")\n"
                       "    ((CURRENT--))\n"
                       "    (($+functions[$name])) && $name\n"
                       "}\n_exfold \"$@\"\n");
out:
    return rc;
}

exf_code exf_completion_zsh(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err)
{
    exf_code rc;
    exf_text files = {0};
    EXF_TRY(exf_completion_files(p, " ", &files, err));
    EXF_TRY(exf_text_addf(out, err, "#compdef %s\n# Made from the option table of %s.\n", p->name, p->name));
    if (p->runs_others) {
        rc = add_others(out, err);
        goto out;
    }
    if (p->n_commands) EXF_TRY(add_first(p, files.s, out, err));
    EXF_TRY(exf_text_addf(out, err, "_%s()\n{\n", p->name));
    EXF_TRY(exf_text_addf(out, err, "    local context state state_descr line\n    typeset -A opt_args\n    _arguments -S \\\n"));
    for (size_t i = 0; i < n; i++)
        if (rows[i].flag) EXF_TRY(add_flag(&rows[i], out, err));
    if (p->keys)
        EXF_TRY(exf_text_addf(out, err, "        '*--set=[set a recipe key from the command line]:KEY=VALUE:->set' \\\n"));
    if (p->n_commands) EXF_TRY(exf_text_addf(out, err, "        '1:command or file:_%s_first' \\\n", p->name));
    EXF_TRY(exf_text_addf(out, err, "        '*:file:_files -g \"%s\"' && return\n", files.s));
    if (p->keys) EXF_TRY(add_keys(rows, n, out, err));
    rc = exf_text_addf(out, err, "}\n_%s \"$@\"\n", p->name);
out:
    exf_text_free(&files);
    return rc;
}
