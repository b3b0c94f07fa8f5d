#!/bin/sh
# demo.sh - from nothing to folding tables and what they do to the model: calibrates the bundled model on the bundled text
# (recipes/demo.yaml) and validates.
# usage: sh scripts/demo.sh      in the source: installs what is missing and builds first; replaces out/demo
#        sh PREFIX/share/exfold/scripts/demo.sh [OUTPUT_DIRECTORY]      of an installation: needs its programs alone; makes
#                                out/demo, below the working directory, and replaces nothing
set -eu
place=$(cd "$(dirname "$0")/.." && pwd)
BUILD=${BUILD:-build}

run() { # PROGRAM ARGUMENT ...
    echo "demo: $bin$*"
    program=$bin$1
    shift
    "$program" "$@"
}

if [ -e "$place/scripts/install-dependencies.sh" ]; then # which is not installed
    cd "$place"
    bin=$BUILD/bin/ recipe=recipes/demo.yaml out=out/demo docs=docs
    jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
    scripts/install-dependencies.sh
    echo "demo: building with $jobs jobs; minutes where nvcc is found, which CUDA=0 leaves out"
    make -s -j"$jobs" BUILD="$BUILD" all
    set -- --force
    again=--force
else
    prefix=${place%/share/exfold}
    bin=$prefix/bin/ recipe=$place/recipes/demo.yaml out=${1:-out/demo} docs=$prefix/share/doc/exfold/docs
    [ "$(command -v exfold-calibrate)" != "${bin}exfold-calibrate" ] && [ -x "${bin}exfold-calibrate" ] || bin=
    set -- --output "$out"
    again="--output $out --force"
fi
run exfold-calibrate "$recipe" "$@"
echo
run exfold-inspect "$out/tables.h5"
echo
run exfold-validate "$recipe" "$@"
cat <<END

The tables are $out/tables.h5 (HDF5) and $out/tables.safetensors.
Next:
  ${bin}exfold-calibrate --help                     every option and recipe key
  ${bin}exfold-calibrate $recipe -n $again    the plan of a run: time, memory, disk
  ${bin}exfold-validate $recipe --frontier $again    which budgets are worth their quality
  ${bin}exfold-inspect digest $out/tables.h5    the same on every run
To calibrate a model of your own on a text of your own:
  ${bin}exfold-calibrate --model DIR --text FILE -o OUT
$docs/from-checkpoint-to-serving.md has the whole way, $docs/recipe.md every key.
END
