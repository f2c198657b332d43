#!/usr/bin/env bash
# Writes requirements.lock with every extra. Each package has one pinned version with hashes. No index or path is named.
# For every platform and every Python from 3.11 on (--universal). UPGRADE=1 takes the newest versions.
set -euo pipefail
cd "$(dirname "$0")/.."

if command -v uv >/dev/null; then
    uv=uv
else
    [ -x .venv/bin/uv ] || tools/setup.sh
    uv=.venv/bin/uv
fi

"$uv" pip compile --quiet --universal --python-version 3.11 \
    --extra spark --extra ui --extra otel --extra postgres --extra kafka --extra airflow --extra webindex --extra plot --extra bench --extra docs --extra dev \
    --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
    ${UPGRADE:+--upgrade} --output-file requirements.lock pyproject.toml >/dev/null
sed -i '1i # Written by "make lock"; do not edit. Why it looks like this: docs/decisions/0002-hashed-lock.md' requirements.lock

if grep -nE '^[[:space:]]*-|https?://|file:|find-links' requirements.lock | grep -vE ':[[:space:]]+--hash=sha256:[0-9a-f]{64}( \\)?$'; then
    echo "lock: requirements.lock names an index or a path (lines above)" >&2
    exit 1
fi
echo "lock: $(grep -c '==' requirements.lock) packages in requirements.lock"
