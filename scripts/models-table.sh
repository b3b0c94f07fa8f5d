#!/bin/sh
# models-table.sh - README's table of models: the families and releases of docs/models.md, and the public runtimes that serve
# tables of each, from src/fold (runtime_<name>.c; one that names no family serves all, and stands below the table).
# usage: models-table.sh      (a generated part of README.md: make docs)
set -eu
cd "$(dirname "$0")/.."
awk '
    function text(line) { split(line, part, "\""); return part[2] }
    function served(family,    list, i) {
        for (i = 1; i <= n; i++) if (of[i] == family) list = list (list == "" ? "" : ", ") "`" name[i] "`"
        return list
    }
    BEGIN { print "| family (`model_type`) | released models | public runtimes that fold (`serve.runtime`) |\n|---|---|---|" }
    /^    \.name = "/ { name[++n] = text($0) }
    /^    \.family = "/ { of[n] = text($0) }
    /^\| `/ && !ended {
        split($0, cell, " *[|] *")
        family = cell[2]
        gsub(/`/, "", family)
        print "| " cell[2] " | " cell[3] " | " (served(family) == "" ? "none yet" : served(family)) " |"
        rows++
    }
    /^$/ && rows { ended = 1 }
    END { print "\nEvery family: " served("") ", a runtime of your own on `libexfold_fold`." }' src/fold/runtime_*.c docs/models.md
