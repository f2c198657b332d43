#!/usr/bin/env bash
# Builds the documentation's site into site/; a warning is an error. Its pages open from disk.
set -euo pipefail
cd "$(dirname "$0")/.."

# The docs describe the library of this checkout, even if another version is installed.
PYTHONPATH="$PWD:$PWD/plugins" NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict "$@"
echo "docs: open site/index.html, or file://$PWD/site/index.html"
