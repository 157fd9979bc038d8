#!/usr/bin/env bash
# A quick part of the tests on other Pythons, with numpy and no extra: numpy must be enough, and tests that need more
# are skipped with a sentence. The Pythons run side by side, about a minute of processor time each; --all runs all
# tests that can run without extras.
#
#     tools/test_other_pythons.sh [--all] [3.11 3.12 3.13]
#
# A Python is looked for on the PATH and in pyenv; one that is not found is no failure. Environments are kept in
# .venv/pythons.
set -euo pipefail
cd "$(dirname "$0")/.."

TESTS=(
    tests/encoding tests/metrics tests/input_checks tests/rows/test_csv.py tests/rows/test_roundtrip.py
    tests/cli/test_wrong_use.py tests/cli/test_detectors_command.py
    tests/detectors/test_norm_scaling.py tests/detectors/test_robust_norm_scaling.py tests/detectors/test_knn.py
    tests/test_moments.py tests/test_outputs.py tests/test_scores.py tests/test_sklearn.py tests/test_lock.py
    "tests/test_docs.py::test_examples_run[README.md]" "tests/test_docs.py::test_examples_run[guide.md]"
)

find_python() { # the first interpreter of a version that runs; a shim of pyenv may be there and not run
    local candidate
    for candidate in "$(command -v "python$1" || true)" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if [ -x "$candidate" ] && "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2> /dev/null; then
            echo "$candidate"
            return
        fi
    done
}

run_tests() { # version, interpreter
    local folder=.venv/pythons/$1 done=.venv/pythons/$1/.installed
    if [ ! -e "$done" ] || [ pyproject.toml -nt "$done" ] || [ constraints.txt -nt "$done" ]; then
        "$2" -m venv --clear "$folder"
        "$folder/bin/python" -m pip --disable-pip-version-check --quiet install --constraint constraints.txt \
            --editable . pytest hypothesis scikit-learn mpmath
        touch "$done"
    fi
    env -u PYTHONPATH "$folder/bin/python" -m pytest -p no:cacheprovider "${TESTS[@]}"
}

[ "${1:-}" != --all ] || { shift && TESTS=(tests); }
versions=("$@")
[ $# -gt 0 ] || versions=(3.11 3.12 3.13)
mkdir -p .venv/pythons
declare -A running
for version in "${versions[@]}"; do
    python=$(find_python "$version")
    if [ -z "$python" ]; then
        echo "Python $version was not found on the PATH or in pyenv; it is not tested here."
        continue
    fi
    run_tests "$version" "$python" > ".venv/pythons/$version.log" 2>&1 &
    running[$version]=$!
done
failed=()
for version in "${!running[@]}"; do
    wait "${running[$version]}" || failed+=("$version")
    echo "Python $version with numpy alone:"
    cat ".venv/pythons/$version.log"
done
if [ "${#failed[@]}" -gt 0 ]; then
    echo "Tests failed on Python ${failed[*]}." >&2
    exit 1
fi
