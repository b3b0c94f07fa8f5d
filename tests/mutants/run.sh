#!/bin/sh
# run.sh - the programs on thousands of damaged files: each must be refused with a status of its own, or be read; none
# may crash, hang or take much memory (mutants.c).
# usage: [BUILD=dir] [EACH=70] run.sh      mutants of each file; files that fail stay below BUILD/mutants
set -u
ROOT=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
build=${BUILD:-build}
case $build in
/*) ;;
*) build=$ROOT/$build ;;
esac
bin=$build/bin
n=${EACH:-70}
work=$build/mutants
[ -x "$bin/exfold-calibrate" ] || { echo "$bin: no programs; run make first"; exit 1; }
refused=$("$ROOT/scripts/build-directory.sh" mark "$build")
[ -z "$refused" ] || { echo "$refused"; exit 1; }
rm -rf "$work"
mkdir -p "$work" || exit 1
cp -R "$ROOT/tests/bad/base/." "$work" && cd "$work" || exit 1
# what libhdf5 itself loses at damaged headers
export LSAN_OPTIONS="${LSAN_OPTIONS:+$LSAN_OPTIONS:}suppressions=$ROOT/tests/cli/lsan.supp:print_suppressions=0"
failed=0

# edits FILE COMMAND ... ; flips FILE COMMAND ...
edits() { "$build/tests/mutants/mutants" edits "$n" "$@" || failed=1; }
flips() { "$build/tests/mutants/mutants" flips "$n" "$@" || failed=1; }

"$bin/exfold-capture" -q recipe.yaml --set 'data.sequences=4' --output out >made &&
    "$bin/exfold-calibrate" -q recipe.yaml --set 'calibrate.projectors=[pair, diagonal, lowrank]' --output out >made || exit 1
mkdir plain && "$bin/exfold-calibrate" -q recipe.yaml --output plain >made || exit 1

# a resume point: of a run that was stopped after its first layer
calibrate="$bin/exfold-calibrate -q recipe.yaml --output resumed --set runtime.checkpoint.every_layers=1"
stop=0
for call in $(seq 1 200); do
    (export EXF_KILL_AT="$call" EXF_KILL_SIGNAL=15 LD_PRELOAD="$build/tests/kill/kill_at_call.so" ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0" &&
        exec $calibrate >made 2>&1)
    stop=$?
    [ $stop != 75 ] || break
done
[ $stop = 75 ] || { echo "no run was stopped after a layer"; exit 1; }
mv resumed stopped
# goes on from a fresh copy of the point, to the digest of the sums
cat >resume.sh <<SCRIPT
rm -rf resumed && cp -R stopped resumed && $calibrate --resume=require >made && "$bin/exfold-inspect" digest resumed/statistics.h5
SCRIPT

for file in plain/tables out/tables plain/statistics out/statistics out/capture; do
    flips $file.h5 "$bin/exfold-inspect" digest $file.h5
done
edits out/tables.h5 "$bin/exfold-export" -q out/tables.h5 --output exported --force --set output.targets=safetensors,csv
cp "$ROOT/tests/fuzz/corpus/artifact/ok-tables-of-others" plain/others.safetensors
edits plain/others.safetensors "$bin/exfold-inspect" plain/others.safetensors
edits plain/statistics.h5 "$bin/exfold-solve" -q plain/statistics.h5 --output solved --force --set pools=2
edits out/statistics.h5 "$bin/exfold-inspect" verify out/statistics.h5
edits out/capture.h5 "$bin/exfold-accumulate" -q out/capture.h5 --output added --force
point=stopped/.exfold-resume-calibrate
for file in "$point"/resume.json "$point"/hidden-* "$point"/sums-0.safetensors; do
    flips "$file" sh resume.sh
    edits "$file" sh resume.sh
done
plan="$bin/exfold-calibrate -q recipe.yaml --output planned"
for file in model/model-00002-of-00002.safetensors model/model.safetensors.index.json model/config.json model/tokenizer.json \
    recipe.yaml manifest.yaml corpus.jsonl; do
    # shellcheck disable=SC2086  # words
    edits $file $plan --force
done
edits tokens.safetensors "$bin/exfold-calibrate" -q recipe.yaml --set data.manifest=tokens.yaml --output planned --force

[ $failed = 0 ] && rm -rf "$work"
exit $failed
