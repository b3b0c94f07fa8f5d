#!/bin/sh
# embed-specification.sh FILE ... - the comment on top of each file as members of a C
# array, a line each: {"<name>", "text"}, where src/artifact/artifact_<name>.c,
# src/accumulate/<name>_file.c and src/artifact/<name>.h are <name> (see src/inspect/inspection.c).
set -eu
for file; do
    name=${file##*/}
    name=${name#artifact_} name=${name%.[ch]}
    awk -v name="${name%_file}" '
        NR == 1 && !/^\/\*/ { exit 1 }
        {
            line = $0
            last = sub(/ *\*\/.*$/, "", line)
            sub(/^\/\* ?/, "", line); sub(/^ \* ?/, "", line)
            if (NR == 1) sub(/^[^ ]* - /, "", line)
            gsub(/\\/, "\\\\", line); gsub(/"/, "\\\"", line)
            print "{\"" name "\", \"" line "\"},"
            if (last) exit
        }' "$file"
done
