#!/usr/bin/env bash
# Lint, then the tests, also when lint has failed: one run shows everything, and pytest's summary comes last.
# Arguments go to pytest.
set -uo pipefail
cd "$(dirname "$0")/.."

tools/lint.sh
lint=$?
.venv/bin/python -m pytest "$@"
tests=$?
[ $lint -eq 0 ] || echo "test: lint failed (see above)" >&2
[ $lint -eq 0 ] && [ $tests -eq 0 ]
