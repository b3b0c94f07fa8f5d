#!/bin/sh
# embed-lines.sh FILE ... - the lines of text files as members of a C array, a line each:
# {"FILE", "text"} (see src/recipe/recipe_defaults.c).
set -eu
for file; do
    awk -v name="$file" '{ gsub(/["\\]/, "\\\\&"); print "{\"" name "\", \"" $0 "\"}," }' "$file"
done
