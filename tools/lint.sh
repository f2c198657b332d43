#!/usr/bin/env bash
# Runs every static check, also after one has failed, and fails if any did.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()
check() {
    echo "lint: $*"
    .venv/bin/"$@" || failed+=("$1 $2")
}

check ruff check --quiet .
check ruff format --quiet --check .
check mypy --no-error-summary percolator_core percolator_bench percolator_torture plugins dags schemas observers tests tools benchmarks
check lint-imports --no-cache --no-logo
check python tools/sizes.py

[ ${#failed[@]} -eq 0 ] || { echo "lint: failed: $(IFS=,; echo "${failed[*]}")" >&2; exit 1; }
echo "lint: passed"
