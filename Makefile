# Everything runs in .venv, which each target sets up by itself. Another interpreter: make test PYTHON=python3.12
PYTHON ?= python3
N ?= 20
# Of make soak: images of a power loss, orders of statements in each scene, simulated schedules, and how many seconds the drill lasts.
IMAGES ?= 5000
ORDERS ?= 5000
SCHEDULES ?= 1000000
# Of make sim: the first schedule, and, to see one again, the steps of it that matter.
SEED ?= 1
KEEP ?=
STORE ?= sqlite
SECONDS ?= 3600
# Most tests wait for processes rather than compute, so more of them than cores run at once.
JOBS ?= 4
ARGS ?=
# Of make test-postgres: the oldest that is supported, and what asks most of a server.
VERSION ?= 14
POSTGRES_TESTS := tests/contract tests/store_pg tests/outage tests/store/test_pg_store.py tests/store/test_pg_plans.py \
	tests/store/test_flow_plans.py

MAKEFLAGS += --no-print-directory
# Where the environment forbids bytecode, every process that is started would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
# One stamp per interpreter: naming another one makes the environment anew.
READY := $(VENV)/ready-$(notdir $(PYTHON))
SOURCES := src tests tools $(wildcard bench) $(wildcard examples)

.DEFAULT_GOAL := help
.PHONY: help demo test test-postgres test-system check format-check lint types fmt stable sim soak bench bench-crash clean

help:
	@echo 'make demo          the whole story in a minute: two workers, one killed with kill -9, the recovery, the report'
	@echo 'make test          run the tests; ARGS="-k name -x" goes to pytest'
	@echo 'make test-postgres VERSION=14   run the tests of the PostgreSQL store on that version, 14 to 18'
	@echo 'make test-system   run the tests that need root: hosts in network namespaces, pgbouncer; installs what they need'
	@echo 'make check         what CI runs: format, lint, types, tests'
	@echo 'make fmt           format the code and repair what the linter can'
	@echo 'make stable N=20   run the crash tests N times and count failures'
	@echo 'make sim N=1000    run N simulated schedules of faults, from SEED=1 on; STORE=postgres for those on a server'
	@echo 'make soak          power losses, orders of statements, schedules by the thousand, and a drill of an hour'
	@echo 'make bench         measure: Everbeat, its floor, its peers; writes bench/RESULTS.md'
	@echo 'make bench-crash   hit Everbeat and its peers with the same faults; writes bench/crash/RESULTS.md'
	@echo 'make clean         remove what was made here'

demo: $(READY)
	@$(BIN)/everbeat demo $(ARGS)

test: $(READY)
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-postgres: $(READY)
	@at=$$($(BIN)/python tools/postgres.py $(VERSION)) && EVERBEAT_TEST_POSTGRES_BIN=$$at \
		$(BIN)/python -m pytest -n $(JOBS) -k 'not sqlite' $(POSTGRES_TESTS) $(ARGS)

test-system: $(READY)
	@[ "$$(id -u)" = 0 ] || { echo 'make test-system needs root: it makes network namespaces' >&2; exit 1; }
	@command -v ip >/dev/null && command -v iptables >/dev/null && command -v pgbouncer >/dev/null || { \
		echo 'installing iproute2, iptables, pgbouncer ...' >&2; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends \
			iproute2 iptables pgbouncer >/dev/null; }
	@EVERBEAT_TEST_SYSTEM=1 $(BIN)/python -m pytest tests/system $(ARGS)

check: format-check lint types test

format-check: $(READY)
	@$(BIN)/ruff format --check --quiet $(SOURCES) || { echo 'some files are not formatted: run make fmt' >&2; exit 1; }

lint: $(READY)
	@$(BIN)/ruff check --quiet $(SOURCES)

types: $(READY)
	@$(BIN)/mypy --no-error-summary

fmt: $(READY)
	@$(BIN)/ruff check --fix --quiet $(SOURCES) || true
	@$(BIN)/ruff format --quiet $(SOURCES)

stable: $(READY)
	@EVERBEAT_ALL_POINTS=1 $(BIN)/python tools/stable.py $(N) -n $(JOBS) $(ARGS)

sim: N = 1000
sim: $(READY)
	@$(BIN)/python -m tests.sim --n $(N) --seed $(SEED) --store $(STORE) $(if $(KEEP),--keep $(KEEP)) $(ARGS)

soak: $(READY)
	@EVERBEAT_POWER=$(IMAGES) $(BIN)/python -m pytest -n $(JOBS) tests/power $(ARGS)
	@EVERBEAT_ORDERS=$(ORDERS) EVERBEAT_CROWD=60 $(BIN)/python -m pytest -n $(JOBS) tests/isolation $(ARGS)
	@$(BIN)/python -m tests.sim --n $$(( $(SCHEDULES) / 3 ))
	@$(BIN)/python -m tests.sim --n $$(( $(SCHEDULES) / 3 )) --seed 1000000
	@$(BIN)/python -m tests.sim --n $$(( $(SCHEDULES) / 3 )) --seed 2000000
	@$(BIN)/everbeat drill --workers 4 --tasks $$(( $(SECONDS) * 10 )) --seconds $(SECONDS)

bench: $(READY)
	@$(BIN)/python -m bench $(ARGS)

bench-crash: $(READY)
	@$(BIN)/python -m bench.crash $(ARGS)

clean:
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(READY): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo '$(PYTHON) was not found; Everbeat needs Python 3.11 or newer' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Everbeat needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Try: make $(MAKECMDGOALS) PYTHON=python3.12")'
	@echo 'setting up $(VENV) ...' >&2
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@
