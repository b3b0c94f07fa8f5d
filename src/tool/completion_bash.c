/* completion_bash.c - bash completions from an option table; see manual.h.
 *
 * Bash breaks words at "=" unless told otherwise, so the word being completed is first put
 * together again ("--set", "runtime.backend", "=", "c" is runtime.backend=c), and only what
 * stands after the last "=" is offered.  No helper of the bash-completion package is used. */
#include "tool/completion.h"

#include <string.h>

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

static exf_code add_keys(const exf_opt *rows, size_t n, exf_text *out, exf_err *err)
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
    EXF_TRY(add_keys(rows, n, out, err));
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
