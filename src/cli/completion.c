/* completion.c - see completion.h. */
#include "cli/completion.h"
#include "cli/programs.h"

#include <ctype.h>
#include <string.h>

exf_completion_kind exf_completion_value(const exf_opt *row)
{
    if (row->type == EXF_OPT_CHOICE || row->type == EXF_OPT_FLAG) return EXF_VALUE_WORDS;
    if (row->type == EXF_OPT_FILES) return EXF_VALUE_FILE;
    if (row->type != EXF_OPT_TEXT || !row->values) return EXF_VALUE_FREE;
    return strcmp(row->values, "DIR") == 0    ? EXF_VALUE_DIRECTORY
           : strcmp(row->values, "FILE") == 0 ? EXF_VALUE_FILE
                                              : EXF_VALUE_FREE;
}

const char *exf_completion_words(const exf_opt *row)
{
    return row->type == EXF_OPT_FLAG ? "true|false" : row->values;
}

/* Adds "*.h5" if it is not there yet. */
static exf_code add_ending(const char *ending, size_t n, const char *gap, exf_text *out, exf_err *err)
{
    exf_text item = {0};
    exf_code rc = exf_text_addf(&item, err, "*%.*s", (int)n, ending);
    if (rc == EXF_OK && !(out->len && strstr(out->s, item.s))) rc = exf_text_addf(out, err, "%s%s", out->len ? gap : "", item.s);
    exf_text_free(&item);
    return rc;
}

static exf_code add_endings(const char *arguments, const char *gap, exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (const char *dot = arguments; rc == EXF_OK && (dot = strchr(dot, '.')); dot++) {
        size_t n = 1;
        while (isalnum((unsigned char)dot[n])) n++;
        if (n > 1) rc = add_ending(dot, n, gap, out, err);
    }
    return rc;
}

exf_code exf_completion_files(const exf_program *p, const char *gap, exf_text *out, exf_err *err)
{
    exf_code rc;
    EXF_TRY(add_endings(p->arguments, gap, out, err));
    for (size_t i = 0; i < p->n_commands; i++) EXF_TRY(add_endings(p->commands[i].arguments, gap, out, err));
    if (!out->len) rc = exf_text_addf(out, err, "*");
out:
    return rc;
}

exf_code exf_completion_commands(const exf_program *p, exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < p->n_commands && rc == EXF_OK; i++)
        rc = exf_text_addf(out, err, "%s%s", i ? " " : "", p->commands[i].name);
    for (size_t i = 0; p->runs_others && rc == EXF_OK && exf_program_at(i); i++)
        rc = exf_text_addf(out, err, "%s ", exf_program_at(i)->name + strlen("exfold-"));
    return p->runs_others && rc == EXF_OK ? exf_text_addf(out, err, "help") : rc;
}

/* ---- completion bash --------------------------------------------------------------------------- */

/* Bash completions from an option table; see manual.h.
 *
 * Bash breaks words at "=" unless told otherwise, so the word being completed is first put
 * together again ("--set", "runtime.backend", "=", "c" is runtime.backend=c), and only what
 * stands after the last "=" is offered.  No helper of the bash-completion package is used. */

/* "--backend|runtime.backend": under which names a value is asked for; a FLAG's flag takes none. */
static exf_code add_names(const exf_opt *row, exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    int flag = row->flag && row->type != EXF_OPT_FLAG;
    if (flag) EXF_TRY(exf_text_addf(out, err, "--%s", row->flag));
    if (flag && row->letter) EXF_TRY(exf_text_addf(out, err, "|-%c", row->letter));
    if (row->key) EXF_TRY(exf_text_addf(out, err, "%s%s", flag ? "|" : "", row->key));
out:
    return rc;
}

static exf_code add_value(const exf_opt *row, exf_text *out, exf_err *err)
{
    switch (exf_completion_value(row)) {
    case EXF_VALUE_WORDS:
        for (const char *c = exf_completion_words(row); *c; c++) {
            exf_code rc = exf_text_add(out, *c == '|' ? " " : c, 1, err);
            if (rc != EXF_OK) return rc;
        }
        return EXF_OK;
    case EXF_VALUE_DIRECTORY: return exf_text_addf(out, err, "@directory");
    case EXF_VALUE_FILE: return exf_text_addf(out, err, "@file");
    case EXF_VALUE_FREE: break;
    }
    return exf_text_addf(out, err, "@free");
}

/* A case for each row that takes a value: words, @directory, @file or @free. */
static exf_code add_values(const exf_opt *rows, size_t n, exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < n; i++) {
        if (rows[i].type == EXF_OPT_FLAG && !rows[i].key) continue;
        EXF_TRY(exf_text_addf(out, err, "    "));
        EXF_TRY(add_names(&rows[i], out, err));
        EXF_TRY(exf_text_addf(out, err, ") reply='"));
        EXF_TRY(add_value(&rows[i], out, err));
        EXF_TRY(exf_text_addf(out, err, "' ;;\n"));
    }
out:
    return rc;
}

static exf_code add_flags(const exf_opt *rows, size_t n, exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < n; i++)
        if (rows[i].flag) {
            int is_on = rows[i].type == EXF_OPT_FLAG && rows[i].fallback && strcmp(rows[i].fallback, "true") == 0;
            EXF_TRY(exf_text_addf(out, err, " --%s", rows[i].flag));
            if (is_on) EXF_TRY(exf_text_addf(out, err, " --no-%s", rows[i].flag));
        }
out:
    return rc;
}

static exf_code add_bash_keys(const exf_opt *rows, size_t n, exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < n; i++)
        if (rows[i].key) EXF_TRY(exf_text_addf(out, err, " %s=", rows[i].key));
out:
    return rc;
}

/* The name as a shell function's: exfold-calibrate is _exfold_calibrate. */
static exf_code add_function(const exf_program *p, exf_text *out, exf_err *err)
{
    exf_code rc = exf_text_add(out, "_", 1, err);
    for (const char *c = p->name; *c && rc == EXF_OK; c++) rc = exf_text_add(out, *c == '-' ? "_" : c, 1, err);
    return rc;
}

static const char body[] = "    local word=${COMP_WORDS[COMP_CWORD]} i=$COMP_CWORD name= value= front= reply= file\n"
                           "    COMPREPLY=()\n"
                           "    while ((i > 1)) && [[ $word == =* || ${COMP_WORDS[i-1]} == = ]]; do\n"
                           "        i=$((i - 1)) word=${COMP_WORDS[i]}$word\n"
                           "    done\n"
                           "    name=${COMP_WORDS[i-1]} value=$word\n"
                           "    if [[ $word == --*=* ]]; then\n"
                           "        name=${word%%=*} value=${word#*=} front=$name=\n"
                           "    fi\n"
                           "    if [[ $name == --set && $value == *=* ]]; then\n"
                           "        front=$front${value%%=*}= name=${value%%=*} value=${value#*=}\n"
                           "    elif [[ $name == --set ]]; then\n"
                           "        reply=$keys\n"
                           "        compopt -o nospace 2>/dev/null\n"
                           "    fi\n"
                           "    [[ $COMP_WORDBREAKS == *=* ]] && front=\n"
                           "    [[ $reply ]] || case $name in\n";

static const char ending[] =
    "    esac\n"
    "    case $reply in\n"
    "    @free) ;;\n"
    "    @directory) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -P \"$front\" -d -- \"$value\") ;;\n"
    "    @file) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -P \"$front\" -f -- \"$value\") ;;\n"
    "    ?*) mapfile -t COMPREPLY < <(compgen -P \"$front\" -W \"$reply\" -- \"$value\") ;;\n"
    "    *)\n"
    "        if [[ $word == -* ]]; then\n"
    "            mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$word\")\n"
    "        else\n"
    "            compopt -o filenames 2>/dev/null\n"
    "            ((i == 1)) && mapfile -t COMPREPLY < <(compgen -W \"$commands\" -- \"$word\")\n"
    "            while IFS= read -r file; do\n"
    "                [[ -d $file || $file == @(%s) ]] && COMPREPLY+=(\"$file\")\n"
    "            done < <(compgen -f -- \"$word\")\n"
    "        fi ;;\n"
    "    esac\n"
    "}\n";

/* `exfold calibrate ...` is completed as exfold-calibrate is, by the file beside this one. */
static const char body_of_others[] =
    "    local word=${COMP_WORDS[COMP_CWORD]} program=${COMP_WORDS[1]} words=\n"
    "    COMPREPLY=()\n"
    "    if ((COMP_CWORD == 1)); then\n"
    "        words=\"$commands $flags\"\n"
    "    elif [[ $program == help ]]; then\n"
    "        ((COMP_CWORD == 2)) && words=${commands% help}\n"
    "    else\n"
    "        declare -F \"_exfold_$program\" >/dev/null || . \"${BASH_SOURCE[0]%/*}/exfold-$program\" 2>/dev/null || return\n"
    "        COMP_WORDS=(\"exfold-$program\" \"${COMP_WORDS[@]:2}\") COMP_CWORD=$((COMP_CWORD - 1))\n"
    "        \"_exfold_$program\"\n"
    "        return\n"
    "    fi\n"
    "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
    "}\n";

exf_code exf_completion_bash(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err)
{
    exf_code rc;
    exf_text files = {0};
    EXF_TRY(exf_completion_files(p, "|", &files, err));
    EXF_TRY(exf_text_addf(out, err, "# bash completions of %s, made from its option table\n", p->name));
    EXF_TRY(add_function(p, out, err));
    EXF_TRY(exf_text_addf(out, err, "()\n{\n    local flags='"));
    EXF_TRY(add_flags(rows, n, out, err));
    if (p->keys) EXF_TRY(exf_text_addf(out, err, " --set"));
    EXF_TRY(exf_text_addf(out, err, "'\n    local keys='"));
    EXF_TRY(add_bash_keys(rows, n, out, err));
    EXF_TRY(exf_text_addf(out, err, "'\n    local commands='"));
    EXF_TRY(exf_completion_commands(p, out, err));
    EXF_TRY(exf_text_addf(out, err, "'\n%s", p->runs_others ? body_of_others : body));
    if (!p->runs_others) {
        EXF_TRY(add_values(rows, n, out, err));
        EXF_TRY(exf_text_addf(out, err, ending, files.s));
    }
    EXF_TRY(exf_text_addf(out, err, "complete -F "));
    EXF_TRY(add_function(p, out, err));
    rc = exf_text_addf(out, err, " %s\n", p->name);
out:
    exf_text_free(&files);
    return rc;
}

/* ---- completion zsh ---------------------------------------------------------------------------- */

/* Zsh completions from an option table, for _arguments; see manual.h. */

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
static exf_code add_zsh_keys(const exf_opt *rows, size_t n, exf_text *out, exf_err *err)
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
    if (p->keys) EXF_TRY(add_zsh_keys(rows, n, out, err));
    rc = exf_text_addf(out, err, "}\n_%s \"$@\"\n", p->name);
out:
    exf_text_free(&files);
    return rc;
}
