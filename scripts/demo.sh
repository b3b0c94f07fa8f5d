#!/bin/sh
# demo.sh - from nothing to folding tables and what they do to the model: installs what is
# missing, builds, calibrates the bundled model on the bundled text (recipes/demo.yaml) into
# out/demo, and validates.
set -eu
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)

scripts/install-dependencies.sh
echo "demo: building with $jobs jobs; minutes where nvcc is found, which CUDA=0 leaves out"
make -s -j"$jobs" BUILD="$BUILD" all
echo "demo: $BUILD/bin/exfold-calibrate recipes/demo.yaml --force"
"$BUILD/bin/exfold-calibrate" recipes/demo.yaml --force
echo
echo "demo: $BUILD/bin/exfold-inspect out/demo/tables.h5"
"$BUILD/bin/exfold-inspect" out/demo/tables.h5
echo
echo "demo: $BUILD/bin/exfold-validate recipes/demo.yaml --force"
"$BUILD/bin/exfold-validate" recipes/demo.yaml --force
cat <<END

The tables are out/demo/tables.h5 (HDF5) and out/demo/tables.safetensors.
Next:
  $BUILD/bin/exfold-calibrate --help                     every option and recipe key
  $BUILD/bin/exfold-calibrate recipes/demo.yaml -n -f    the plan of a run: time, memory, disk
  $BUILD/bin/exfold-validate recipes/demo.yaml --frontier --force    which budgets are worth their quality
  $BUILD/bin/exfold-inspect digest out/demo/tables.h5    the same on every run
To calibrate a model of your own on a text of your own:
  $BUILD/bin/exfold-calibrate --model DIR --text FILE -o OUT
docs/from-checkpoint-to-serving.md has the whole way, docs/recipe.md every key.
END
