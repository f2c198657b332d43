#!/usr/bin/env bash
# Checks the files that differ from main (or from the last commit if there is no main), then runs the fast tests.
# Arguments go to pytest.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()
check() {
    echo "quick: $1 $2" >&2
    .venv/bin/"$@" || failed+=("$1 $2")
}

base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null || echo HEAD)
mapfile -t changed < <({
    git diff --name-only --diff-filter=d "$base" -- '*.py'
    git ls-files --others --exclude-standard -- '*.py'
} 2>/dev/null | sort -u)

check ruff check --quiet .
check ruff format --quiet --check .
check lint-imports --no-cache --no-logo >/dev/null
check python tools/sizes.py
[ ${#changed[@]} -eq 0 ] || check mypy --no-error-summary "${changed[@]}"

check python -m pytest --quiet --numprocesses 2 --dist loadfile -m "not slow and not spark" \
    tests/schema tests/scripts tests/notifications tests/recipes tests/transaction/test_transactions.py \
    tests/test_{mutants,public_names,readme,repository,sizes,tools}.py "$@"

[ ${#failed[@]} -eq 0 ] || { echo "quick: failed: $(IFS=,; echo "${failed[*]}")" >&2; exit 1; }
echo "quick: passed"
