#!/bin/sh
# Before Airflow's parts start: its database, made or brought up to date, and the file with the logins.
# A changed password in the environment counts from the next start on.
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
