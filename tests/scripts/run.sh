#!/bin/sh
# run.sh - the Python scripts, alone and beside the libraries they stand for.
# usage: BUILD=dir [PYTHON=python3] run.sh      (make check-scripts)      last line: "N passed, N failed"
# What Python lacks of the libraries is installed with pip into $BUILD/scripts-python.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build} python=${PYTHON:-python3}
into=$BUILD/scripts-python
export PYTHONPATH="$into" PYTHONDONTWRITEBYTECODE=1
passed=0 failed=0

if ! "$python" -c 'import datasets, jinja2, jsonschema, transformers, yaml' 2>/dev/null; then
    echo "check-scripts: installing datasets, transformers, jinja2, jsonschema and PyYAML into $into"
    "$python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --target "$into" \
        'datasets==5.2.0' 'transformers==5.23.0' 'jinja2>=3.1.6' 'jsonschema>=4' PyYAML || exit 1
fi

for test in tests/scripts/test_*.py tests/scripts/beside_libraries.py; do
    if said=$("$python" "$test" 2>&1); then
        passed=$((passed + 1))
        echo "  ok      $test: $(echo "$said" | grep -e '^Ran ' -e ' conversations ' | tail -n 1)"
    else
        failed=$((failed + 1))
        echo "$said"
        echo "  FAILED  $test"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
