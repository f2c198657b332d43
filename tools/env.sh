#!/usr/bin/env bash
# Writes .env from .env.example, with a random secret for each empty one. An existing .env is not changed.
set -euo pipefail
cd "$(dirname "$0")/.."
[ ! -e .env ] || { echo "env: there is an .env already: edit it, or remove it and run this again" >&2; exit 1; }

umask 077
while IFS= read -r line; do
    case $line in
        AIRFLOW_FERNET_KEY=) line+=$(head -c 32 /dev/urandom | base64 | tr '+/' '-_') ;;
        [A-Z]*=) line+=$(head -c 24 /dev/urandom | od -An -vtx1 | tr -d ' \n') ;;
    esac
    printf '%s\n' "$line"
done <.env.example >.env
echo "env: .env holds new secrets; AIRFLOW_ADMIN_PASSWORD there is the one to log in with as admin"
