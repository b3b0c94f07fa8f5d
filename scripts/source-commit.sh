#!/bin/sh
# source-commit.sh - the first 12 digits of the commit these sources are of.
# A release's COMMIT holds it (git archive puts it in, see .gitattributes); in a working
# tree git is asked; elsewhere nobody knows.
cd "$(dirname "$0")/.." || exit 1
commit=$(sed -n 's/^\([0-9a-f]\{12\}\)[0-9a-f]*$/\1/p' COMMIT 2>/dev/null)
[ -n "$commit" ] || commit=$(git rev-parse --short=12 HEAD 2>/dev/null) || commit=unknown
echo "$commit"
