#!/usr/bin/env bash
# Runs lint, then the tests even if lint failed: one run shows everything, and pytest's summary comes last.
# Arguments go to pytest.
set -uo pipefail
cd "$(dirname "$0")/.."
# Images often set this. The tests start Python thousands of times, and each start would compile all modules again.
unset PYTHONDONTWRITEBYTECODE

tools/lint.sh
lint=$?
# Many tests wait until a server is missed or Spark has started, so three files at a time keep two cores busy.
.venv/bin/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder "$@"
tests=$?
[ $lint -eq 0 ] || echo "test: lint failed (see above)" >&2
[ $lint -eq 0 ] && [ $tests -eq 0 ]
