#!/bin/sh
# Runs before Airflow's parts start: creates or migrates the database, and writes the file with the logins.
# If a password in the environment changes, the change takes effect at the next start.
set -eu
airflow db migrate
umask 077
exec python -c '
import json, os, pathlib

names = ("admin", "viewer")
passwords = {name: os.environ[f"AIRFLOW_{name.upper()}_PASSWORD"] for name in names}
path = pathlib.Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
draft = path.with_suffix(".new")
draft.write_text(json.dumps(passwords) + "\n")
draft.replace(path)
'
