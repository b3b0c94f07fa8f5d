# declared-elsewhere.awk - print functions that a header declares and another module defines.
# usage: awk -f declared-elsewhere.awk FILE ...       (headers and sources)
#
# What foo.h declares is defined in foo.c, foo_<part>.c, foo_cpu.c or foo_cuda.cu, or in a
# file that includes the private header foo_internal.h or foo_inside.h; and, where a folder
# is a registry of files named after it, in artifact/artifact_foo.c.
# Functions in column 1 are seen, and operations of a type exf_NAME_op; what a macro declares or defines is not.
# Exit status 1 if something was printed.

function module(path) {
    sub(/.*\//, "", path)
    sub(/\.(c|h|cu|cuh)$/, "", path)
    sub(/_(cpu|cuda)$/, "", path)
    sub(/_(internal|inside)$/, "", path)
    return path
}

function folder(path) { sub(/\/[^\/]*$/, "", path); sub(/.*\//, "", path); return path }
function is_header(path) { return path ~ /\.(h|cuh)$/ }

function declare(name) {
    declared_in[name, ++n_headers[name]] = FILENAME; names[++n] = name; line_of[name, n_headers[name]] = line
}

# `text` up to its first ; or { is a declaration or a definition, or something else.
function note(text,   name, i, n_words, word) {
    if (text ~ /^exf_[A-Za-z0-9_]*_op exf_[^(]*;$/ && is_header(FILENAME)) {
        n_words = split(text, word, /[ ,;]+/)
        for (i = 2; i < n_words; i++) declare(word[i])
        return
    }
    if (!match(text, /exf_[A-Za-z0-9_]+ *\(/)) return
    name = substr(text, RSTART, RLENGTH)
    sub(/ *\($/, "", name)
    if (substr(text, 1, RSTART - 1) !~ /^[A-Za-z_][A-Za-z0-9_ *]*$/) return
    if (text ~ /;$/) {
        if (is_header(FILENAME)) declare(name)
    } else if (!is_header(FILENAME)) {
        defined_in[name] = FILENAME
    }
}

FNR == 1 { within = 0 }
/^ *# *include *"[^"]*_(internal|inside)\.(h|cuh)"/ {
    split($0, quoted, "\"")
    shares[FILENAME, module(quoted[2])] = 1
}
!within && /^[A-Za-z_]/ && !/^(typedef|static|enum|union|extern "C")/ { within = 1; text = ""; line = FNR }
within {
    text = text $0 " "
    if (match(text, /[;{]/)) {
        note(substr(text, 1, RSTART))
        within = 0
    }
}

END {
    for (i = 1; i <= n; i++) {
        name = names[i]
        if (!(name in defined_in) || done[name]++) continue
        where = module(defined_in[name])
        for (k = 1; k <= n_headers[name]; k++) {
            home = module(declared_in[name, k])
            if (where == home || index(where, home "_") == 1 || (defined_in[name], home) in shares) continue
            if (where == folder(defined_in[name]) "_" home) continue
            print declared_in[name, k] ":" line_of[name, k] ": " name " is defined in " defined_in[name]
            bad = 1
        }
    }
    exit bad
}
