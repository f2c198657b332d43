# Everything runs in .venv, which is made from requirements.lock when it is missing or the lock has changed.
# Settings: PYTHON=  the Python to make .venv with      DOCS=  a folder of HTML for demo, airflow
#           ARGS=    more arguments for pytest (test), percolator torture (torture), percolator bench (bench)
#                    or tools/mutants.py (mutants)

.PHONY: help demo airflow test quick lint docs picture mutants torture bench lock venv java clean
.DEFAULT_GOAL := help

help:  ## what can be made
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

demo: venv java  ## set everything up and run the demonstration (DOCS=FOLDER for documents of your own)
	@.venv/bin/python -m observers.webindex demo $(if $(DOCS),--docs "$(DOCS)")

airflow: venv java  ## load the web index and run it with Airflow on this machine, until Ctrl-C (DOCS=FOLDER as for demo)
	@.venv/bin/python -m observers.webindex.demo.fill $(if $(DOCS),--docs "$(DOCS)")
	@.venv/bin/percolator up

test: venv java  ## lint and every test (ARGS="-k name" goes to pytest)
	@tools/test.sh $(ARGS)

quick: venv  ## lint of the changed files and the fast tests: a minute or two, without Java
	@tools/quick.sh $(ARGS)

lint: venv  ## ruff, mypy, the import layers, and the sizes of modules and functions
	@tools/lint.sh

docs: venv  ## the documentation as a site, in site/index.html
	@tools/docs.sh

picture: venv  ## draw the layers and imports of the packages again, into docs/assets
	@PYTHONPATH=.:plugins .venv/bin/python tools/architecture.py

mutants: venv  ## plant known bugs in a copy and see that a test catches each (ARGS="c f2" for some)
	@.venv/bin/python tools/mutants.py --record $(ARGS)

torture: venv  ## the long runs, about an hour, into docs/explanation/reliability.md (ARGS="--seed 7" and the like)
	@.venv/bin/percolator torture bank append --transactions 500000 --kills 250 --seed 2026 \
		--report docs/explanation/reliability.md --section workloads $(ARGS)
	@.venv/bin/percolator torture counter long-fork ring --transactions 100000 --kills 50 --seed 2026 \
		--report docs/explanation/reliability.md --section others $(ARGS)
	@.venv/bin/percolator torture twin --transactions 100000 --kills 50 --seed 2026 \
		--report docs/explanation/reliability.md --section twin $(ARGS)
	@.venv/bin/percolator torture aof oracle --rounds 100 --seed 2026 \
		--report docs/explanation/reliability.md --section servers $(ARGS)
	@.venv/bin/percolator torture failover --rounds 20 --seed 2026 \
		--report docs/explanation/reliability.md --section failover $(ARGS)

bench: venv java  ## the benchmarks (ARGS= names one and its settings)
	@.venv/bin/percolator bench $(ARGS)

lock:  ## write requirements.lock again (UPGRADE=1 takes the newest versions)
	@UPGRADE="$(UPGRADE)" tools/lock.sh

venv:
	@PYTHON="$(PYTHON)" tools/setup.sh

java:
	@tools/java.sh

clean:  ## remove .venv, caches and build results; the state in .percolator stays
	@rm -rf .venv build dist site artifacts spark-warehouse metastore_db derby.log \
		.hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
