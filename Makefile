# Every target sets up what it needs: Python 3.11+, git and make are enough.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
KINDS   = $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not grid"

.DEFAULT_GOAL := help
.PHONY: help demo test spark equality kinds check lint types lua layers generate generated bench bench-pipeline bench-requests bench-spark bench-peers \
        bench-growth bench-instructions bench-guard model faults spark-crash jitter massacre chaos cluster-faults mutants docs lock release clean

help:                  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## / — /'

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Holdfast needs Python 3.11 or newer: make PYTHON=python3.12 …"; exit 1; }
	@echo "setting up $(VENV); the first time this downloads PySpark and a Java, which takes minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY)         ## the pipeline on Spark, a worker killed in the middle: make demo MEGABYTES=200
	@$(BIN)/python examples/demo.py --megabytes $(or $(MEGABYTES),100)

test: $(READY)         ## every test on a real server
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(or $(ARGS),--ignore=tests/spark)
	$(if $(ARGS),,@$(MAKE) --no-print-directory spark kinds)

spark: $(READY)        ## connectors and pipeline, with one Spark session per process
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(or $(ARGS),tests/spark)

kinds: $(READY)        ## the engine tests as a limited user, as scripts, and on a cluster of three nodes
	$(KINDS) --server-kind=acl tests/engine tests/writes tests/readers $(ARGS)
	$(KINDS) --server-kind=scripts tests/engine $(ARGS)
	$(KINDS) --server-kind=nodes tests/engine tests/writes tests/readers $(ARGS)

check: lint types lua layers generated   ## format, lint, types, Lua, layering, generated code

generate: $(READY)     ## write src/holdfast/client/sync from client/aio
	@$(BIN)/python tools/generate_client.py

generated: $(READY)
	@$(BIN)/python tools/generate_client.py --check

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

lua: $(READY)
	@$(BIN)/python tools/lint_lua.py

layers: $(READY)
	$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

bench: $(READY)        ## the queue beside the floor, in one table
	@$(BIN)/python -m bench.queue $(ARGS)

bench-requests: $(READY)   ## parts of requests beside plain jobs; a request of a million parts
	@$(BIN)/python -m bench.requests $(ARGS)

bench-pipeline: $(READY)   ## the pipeline beside one plain Spark job
	@$(BIN)/python -m bench.pipeline $(ARGS)

bench-spark: $(READY)      ## the connectors beside Spark's own sources and sinks
	@$(BIN)/python -m bench.spark $(ARGS)

bench-peers: $(READY)      ## everything beside its peers, installed into .bench/: ARGS=--quick for a look
	@$(BIN)/python -m bench.compare $(ARGS)

bench-growth: $(READY)     ## what a job costs the server as queues, leases, requests and payloads grow
	@$(BIN)/python -m bench.growth $(ARGS)

bench-instructions: $(READY)   ## instructions per job beside the record: ARGS=--strict fails where one grew, ARGS=--record
	@$(BIN)/python -m bench.instructions $(ARGS)

bench-guard: $(READY)      ## under a minute: ratios to the floor and instructions beside the record; fails nothing
	@$(BIN)/python -m bench.guard

model: $(READY)        ## the model test for longer: make model STEPS=1000000
	HOLDFAST_MODEL_STEPS=$(or $(STEPS),200000) HOLDFAST_MODEL_SEED=$(or $(SEED),$$(date +%s)) $(BIN)/python -m pytest tests/model $(ARGS)

faults: $(READY)       ## the long forms of the fault tests
	$(BIN)/python -m pytest -n 2 -m slow --ignore=tests/spark $(ARGS)

equality: $(READY)     ## random plans in parts beside one plain job: make equality CASES=5000 SEED=1
	HOLDFAST_EQUALITY_CASES=$(or $(CASES),5000) HOLDFAST_EQUALITY_SEED=$(or $(SEED),$$(date +%s)) \
	  $(BIN)/python -m pytest -s tests/spark/pipeline/test_equality.py -k random_plans $(ARGS)

spark-crash: $(READY)  ## kill Spark at every step, and run it on clusters: make spark-crash ROUNDS=5
	HOLDFAST_SPARK_ROUNDS=$(or $(ROUNDS),3) $(BIN)/python -m pytest -m slow tests/spark $(ARGS)

jitter: $(READY)       ## find tests that depend on the machine's speed (Python 3.12+): make jitter ARGS=tests/worker SEED=1
	HOLDFAST_JITTER_SEED=$(SEED) $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" -p jitter \
	  $(or $(ARGS),--ignore=tests/spark --ignore=tests/engine --ignore=tests/model tests)

massacre: $(READY)     ## kill workers of a limited request for minutes: make massacre MINUTES=10
	HOLDFAST_MASSACRE_MINUTES=$(or $(MINUTES),3) \
	  $(BIN)/python -m pytest -m slow -s tests/faults/test_massacre.py $(ARGS)

chaos: $(READY)        ## kill, freeze and stop workers that run all kinds of jobs: make chaos MINUTES=10
	HOLDFAST_CHAOS_MINUTES=$(or $(MINUTES),3) \
	  $(BIN)/python -m pytest -m slow -s tests/faults/test_chaos.py $(ARGS)

cluster-faults: $(READY)   ## the seeds on a cluster; slots moved and primaries killed under load: make cluster-faults TIMES=20
	$(KINDS) --server-kind=nodes tests/seeds
	HOLDFAST_CLUSTER_FAULTS=$(or $(TIMES),5) \
	  $(BIN)/python -m pytest -m slow -s tests/cluster $(ARGS)

mutants: $(READY)      ## change the Lua in one place at a time: does a test notice?
	@$(BIN)/python tools/mutants.py $(ARGS)

docs: $(READY)         ## the site, of docs/ and of the docstrings, in build/site; links and anchors are checked
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env --conf-dir docs . build/site
	@echo "open build/site/index.html"

lock: $(READY)         ## pin the dependencies anew
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --generate-hashes \
	  --no-emit-index-url --no-header --no-annotate --output-file requirements.lock

release: $(READY)      ## build wheels and sdist in build/release, and check them; nothing is published
	@$(BIN)/python -m tools.release $(ARGS)

clean:                 ## remove what the targets made
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
