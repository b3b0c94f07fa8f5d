#!/bin/sh
# models-table.sh - README's table of models: the families and releases of docs/models.md, and what serves tables of each: the
# plugin for vLLM where tests/interop/check_vllm.py runs the family, and the public runtimes of src/fold (runtime_<name>.c; one
# that names no family serves all, and stands below the table).  Families that nothing serves share the last row.
# usage: models-table.sh      (a generated part of README.md: make docs)
set -eu
cd "$(dirname "$0")/.."
awk '
    function text(line) { split(line, part, "\""); return part[2] }
    function served(family,    list, i) {
        for (i = 1; i <= n; i++) if (of[i] == family) list = list (list == "" ? "" : ", ") "`" name[i] "`"
        return list
    }
    BEGIN { print "| family (`model_type`) | released models | runtimes that fold |\n|---|---|---|" }
    /^FAMILIES = / || /^TRAINED = / { gsub(/[^a-z0-9_]+/, " "); tested = tested " " $0 " " }
    /^    \.name = "/ { name[++n] = text($0) }
    /^    \.family = "/ { of[n] = text($0) }
    /^\| `/ && !ended {
        split($0, cell, " *[|] *")
        family = cell[2]
        gsub(/`/, "", family)
        sub(/,.*/, "", family)
        ours = index(tested, " " family " ") ? "`exfold`" : ""
        theirs = served(family)
        rows++
        if (ours theirs == "") {
            families = families (families == "" ? "" : ", ") cell[2]
            models = models (models == "" || cell[3] == "" ? "" : ", ") cell[3]
        } else
            print "| " cell[2] " | " cell[3] " | " ours (ours != "" && theirs != "" ? ", " : "") theirs " |"
    }
    /^$/ && rows { ended = 1 }
    END { print "| " families " | " models " | none |\n\n" served("") ": [in vLLM](docs/serving.md#in-vllm), or your own runtime on `libexfold_fold`." }' \
    tests/interop/check_vllm.py src/fold/runtime_*.c docs/models.md
