# `make run` and `make test` do all of their own set-up; see README.md.
.DEFAULT_GOAL := help
SHELL := /bin/sh
# Where it is set, each of the hundreds of daemons that tests start compiles our modules anew: 0.30 s
# of CPU for 0.22.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
KERBEROS := $(VENV)/kerberos
ARCHIVE := $(VENV)/var/stormkeeper/spark.jsa
COMPILED := $(wildcard src/stormkeeper/*/*/_compiled.pyx)

.PHONY: help setup run dist docs test test-slow test-busy lint bench bench-pacemaker bench-local bench-state bench-zookeeper bench-heartbeats bench-cluster bench-nimbus bench-decoding bench-pipeline bench-history soak faults fuzz explore simulate peer interop format clean

help: ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup: $(ARCHIVE) ## virtual environment, pinned packages, Java, Spark's classes gathered

$(INSTALLED): pyproject.toml setup.py constraints.txt scripts/setup $(COMPILED)
	@scripts/setup $(VENV)
	@touch $@

# Without it Spark starts as well, and takes twice the time.
$(ARCHIVE): $(INSTALLED)
	@echo "setup: gathering Spark's classes, which halves its later starts (once, half a minute)"
	@$(BIN)/python -m stormkeeper.daemon.spark_archive || echo "setup: that failed, and is tried again next time"

run: $(ARCHIVE) ## a whole cluster on this machine, counting words (Ctrl-C ends it)
	@$(BIN)/storm local examples/word_count.py $(ARGS)

# The wheel is built from the sdist. Nothing of what it needs to run is installed for that.
dist: ## wheel and sdist, in dist/
	@scripts/setup build/venv dist
	@rm -rf dist
	@build/venv/bin/python -m build --quiet --no-isolation --outdir dist
	@ls dist

docs: $(INSTALLED) ## the documentation as a site, in build/site
	@$(BIN)/mkdocs build --quiet
	@echo "docs: open build/site/index.html"

# Once, and tried again where it did not work; tests of Kerberos are skipped then.
$(KERBEROS): $(INSTALLED)
	@if scripts/setup $(VENV) kerberos; then touch $@; fi

# Three at a time, as most of them wait for something (ARGS=-n0: one after another).
WORKERS := 3
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
test: $(KERBEROS) $(ARCHIVE) ## the tests, against real ZooKeeper, Spark and daemons
	@$(PYTEST) $(ARGS)

test-slow: $(KERBEROS) $(ARCHIVE) ## the slow ones, which `make test` leaves out (one alone: pytest FILE::NAME)
	@$(PYTEST) -m slow $(ARGS)

test-busy: $(KERBEROS) $(ARCHIVE) ## `make test` beside busy loops and thousands of connections (TIMES=3)
	@$(BIN)/python tests/support/busy.py --times $(or $(TIMES),3) $(MAKE) test

lint: $(INSTALLED) ## formatter, linter, strict type checker
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench: bench-pacemaker bench-local bench-state bench-cluster bench-nimbus bench-decoding ## measure Pacemakers, clusters, their state, decoding; results in bench/results/

bench-pacemaker: $(INSTALLED) ## Pacemakers beside Redis and memcached (ARGS=--quick: two minutes)
	@scripts/bench-setup
	@$(BIN)/python bench/pacemaker_bench.py $(ARGS)

bench-local: $(ARCHIVE) ## a cluster on this machine
	@$(BIN)/python bench/local_run.py $(ARGS)

bench-cluster: $(ARCHIVE) ## how soon a topology runs that is submitted, and how fast Nimbus answers
	@$(BIN)/python bench/cluster_bench.py $(ARGS)

bench-nimbus: $(INSTALLED) ## the Nimbus of 3,000 supervisors: its rounds, deaths, failover (ARGS="--shape small --quick": two minutes)
	@$(BIN)/python bench/nimbus_bench.py $(ARGS)

bench-state: $(INSTALLED) ## the cluster state on ZooKeeper, beside kazoo's own calls (ARGS=--quick: one minute)
	@$(BIN)/python bench/state_bench.py $(ARGS)

bench-zookeeper: $(INSTALLED) ## the same heartbeats through ZooKeeper and through a Pacemaker
	@$(BIN)/python bench/zookeeper_bench.py $(ARGS)

bench-heartbeats: $(INSTALLED) ## who is alive, read from one Pacemaker and from three
	@$(BIN)/python bench/heartbeats_bench.py $(ARGS)

bench-history: $(INSTALLED) ## how soon a week of a large cluster's tables answers (1 GB, two minutes to make)
	@$(BIN)/python bench/history_bench.py $(ARGS)

bench-decoding: $(INSTALLED) ## heartbeats from bytes to Arrow's columns, beside gunzip and Apache Thrift
	@$(BIN)/python bench/decoding_bench.py $(ARGS)

bench-pipeline: $(ARCHIVE) ## the heartbeat pipeline over a simulated cluster, and whether it is true (ARGS="fleet --minutes 10")
	@$(BIN)/python bench/pipeline_bench.py $(ARGS)

SECONDS := 3600
faults: $(KERBEROS) ## every bad input in every mode, ensembles that fail for longer (some minutes)
	@$(BIN)/pytest tests/faults -m 'faults or slow or not slow' $(ARGS)

fuzz: $(INSTALLED) ## frames and heartbeats that are nearly right (EXAMPLES=50000 of each kind)
	@EXPLORE=1 FUZZ_EXAMPLES=$(or $(EXAMPLES),50000) $(BIN)/pytest tests/fuzz --timeout 3600 $(ARGS)
	@EXPLORE=1 FUZZ_EXAMPLES=$(or $(EXAMPLES),50000) scripts/fuzz-sanitized $(VENV) $(ARGS)

explore: $(ARCHIVE) ## every property with examples that nobody has tried yet (TIMES=20)
	@for run in $$(seq $(or $(TIMES),20)); do EXPLORE=1 $(PYTEST) -q -m hypothesis $(ARGS) || exit 1; done

simulate: $(INSTALLED) ## leaders that were stopped, and elections, under many schedules (SEEDS=10000)
	@SIMULATION_SEEDS=$(or $(SEEDS),10000) $(BIN)/pytest tests/simulation --timeout 3600 $(ARGS)

# Before anything is compiled in vain. PEER is exported by make itself, as it is given on the command
# line.
peer:
	@[ -n "$(PEER)" ] || { echo "make interop PEER=DIR: which jars of a Storm? (docs/interop.md)" >&2; exit 2; }

interop: peer $(KERBEROS) ## ours against Storm's own Java (PEER=DIR: the jars of a Storm, see docs/interop.md)
	@$(BIN)/pytest tests/interop -m interop $(ARGS)

soak: $(INSTALLED) ## Pacemakers under workers that come and go, until memory is flat (SECONDS=3600)
	@$(BIN)/python bench/soak.py --seconds $(SECONDS)

format: $(INSTALLED) ## apply the formatter and the linter's safe fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## remove the virtual environment and every cache
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist storm-local spark-warehouse
	rm -rf src/*.egg-info $(COMPILED:.pyx=.c) $(COMPILED:.pyx=.*.so)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
