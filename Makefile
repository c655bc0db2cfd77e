# One command while you work: `make`. It formats, lints, type-checks, checks the layers, runs the unit tests.
# On a fresh machine every target first makes .venv; it is made again when pyproject.toml changes.
SHELL := /bin/bash
.DEFAULT_GOAL := check
BIN := .venv/bin
INSTALLED := .venv/.installed
SPARK := .venv/.spark
PYTEST := $(BIN)/python -m pytest -q
# one more than there are cores: tests wait for processes and clients now and then
WORKERS := $(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 1)))
# xdist runs a file's tests in one worker, in the order of the files. A worker that had to be ended is not
# replaced: the next would only run into the same. After 70 minutes the run ends.
WHOLE := -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --session-timeout 4200

.PHONY: check fix static unit test slow flaky cluster spark sim chaos demo bench run environment kcat etcd nft clean help

check: fix static               ## format, lint, types, layers, unit tests
	$(PYTEST) -n $(WORKERS)

fix: $(INSTALLED)               ## format, and mend what ruff can mend
	$(BIN)/ruff format -q .
	$(BIN)/ruff check -q --fix .

static: $(INSTALLED)            ## what can be said without running anything
	$(BIN)/ruff format -q --check .
	$(BIN)/ruff check -q .
	$(BIN)/mypy --no-error-summary src tests examples $(wildcard benchmarks/*.py)
	@said=$$($(BIN)/lint-imports --no-logo) || { echo "$$said"; exit 1; }

unit: $(INSTALLED)              ## make unit T=storage
	$(PYTEST) tests/unit/$(T)

test: $(SPARK) kcat etcd nft     ## static checks, then every test that is not marked long; about 20 minutes
	@failed=0; begun=$$SECONDS; $(MAKE) --no-print-directory static || failed=1; \
	STATIC_SECONDS=$$((SECONDS - begun)) $(PYTEST) $(WHOLE) --second-run --lanes -m 'not long' || failed=1; \
	exit $$failed

slow: $(INSTALLED)              ## long property runs, many simulation seeds, hundreds of kills
	BANK_S=120 CHAOS_S=60 $(PYTEST) -n auto --dist loadfile -m '(slow or long) and not spark'

flaky: $(INSTALLED)             ## make flaky N=20 T=tests/cluster/test_crash.py::test_…: one test again and again, under load
	@scripts/flaky $(or $(N),20) '$(T)'

cluster: $(INSTALLED) kcat etcd nft ## real processes: brokers and Kafka clients
	$(PYTEST) -m cluster tests/cluster tests/conformance

spark: $(SPARK)                 ## the data pipeline on Spark, jobs killed at every step and all
	$(PYTEST) -n auto --dist loadfile --no-loadscope-reorder -m spark tests/spark

chaos: $(INSTALLED) etcd nft    ## make chaos MINUTES=10: faults at random; SEED=… plays one run again
	MINUTES=$(or $(MINUTES),5) SEED=$(or $(SEED),random) $(PYTEST) -s -m cluster tests/cluster/test_cluster_chaos.py

sim: $(INSTALLED)               ## clusters in virtual time: make sim HOURS=10 or SEEDS=100, SEED=1 make sim for one again
	@PYTHONPATH=.:src $(BIN)/python -m tests.simulation

demo: $(SPARK)                  ## a broker, a million messages there and back and into a table, the proof and the rates
	@$(BIN)/python examples/demo.py

bench: $(INSTALLED)             ## make bench B=throughput
	$(BIN)/python -m benchmarks.$(B)

run: $(INSTALLED)               ## one broker on 127.0.0.1:9092, data in ./penstock-data
	$(BIN)/penstock serve

environment: $(INSTALLED)       ## only make .venv
$(INSTALLED): pyproject.toml scripts/environment
	@scripts/environment dev
	@touch $@

$(SPARK): $(INSTALLED)          # Spark and the writers of tables are large: only what runs them installs them
	@scripts/environment dev,spark,java,delta,iceberg
	@touch $@

kcat:
	@scripts/install-kcat

etcd: $(INSTALLED)
	@scripts/install-etcd

nft:
	@scripts/install-nft

clean:                          ## forget .venv and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist

help:                           ## this list
	@awk -F ' *## ' '/^[a-z]+:.*## / { split($$1, name, ":"); printf "make %-12s %s\n", name[1], $$2 }' Makefile
