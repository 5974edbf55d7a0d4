# On a fresh machine: `make demo` and `make test`; while at work `make check`. All make their own environment
# in .venv from the lock.
.DEFAULT_GOAL := help
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
  command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
UV = $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
ARGS ?=

DOCS := .venv-docs

.PHONY: help demo dist check test lint format docs reference film torture bench-reader bench-latency bench-snapshot bench-silver bench-gold bench-fresh bench-verify bench-first bench-scaling bench-size bench-month readers matrix lowest lock java clean

help:  ## What can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

demo: archive compiled  ## A live shop through bronze, silver and gold, with a quality report
	@$(BIN)/smelt demo $(ARGS)

dist: $(VENV)/.ready  ## The wheel in dist/, and the commands that install it elsewhere
	@rm -rf dist && $(BIN)/python -m build --no-isolation --wheel --outdir dist . >/dev/null
	@cd dist && for wheel in *.whl; do \
	  echo "dist/$$wheel, for Python 3.11 and newer:"; \
	  echo "  pip install './$$wheel'                   the reader: smelt bronze, init, check, status"; \
	  echo "  pip install './$$wheel[spark,quality]'    every command; Spark needs Java 17"; \
	  echo "  pip install './$$wheel[demo]'             smelt demo as well, with its own PostgreSQL"; \
	  echo "  further extra: connect, for a Spark Connect server"; \
	done

check: lint compiled  ## Lint, then every test that needs neither PostgreSQL nor a JVM nor another process
	@$(BIN)/python -m pytest -q -n 2 --maxschedchunk 8 -m "not spark and not postgres and not process and not torture" $(ARGS)

# The archive is made beside lint: each keeps one core busy for a minute and a half.
test: java $(VENV)/.ready  ## Lint, then every test but the long fault scenarios, two processes with Spark, one without
	@$(MAKE) --no-print-directory -j 2 lint archive compiled lowest
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not torture" $(ARGS)

lowest: $(VENV)/.ready  ## The decoder, and every import, on the lowest versions that pyproject.toml allows
	@$(BIN)/python -m tests.matrix --lowest

matrix: $(VENV)/.ready  ## make check and a flow of Spark in other environments, for the table of docs/support.md; an hour or two
	@nice $(BIN)/python -m tests.matrix $(ARGS)

lint: $(VENV)/.ready  ## ruff, mypy strict, import-linter, plain words
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.words --limit 55 5 25 bronze silver gold pipelines deltasmelt conf tests

format: $(VENV)/.ready  ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(DOCS)/.ready  ## The documentation as a site in site/, with search; a broken link or a foreign resource is an error
	@$(DOCS)/bin/sphinx-build -q -E -n -W --keep-going -b html -c docs/_sphinx docs site
	@echo "site/index.html"

reference: $(VENV)/.ready  ## Write the generated parts of the pages: options of commands, keys of the pipeline file
	@$(BIN)/python -m tests.docs.reference

FILM = /tmp/shop

film: archive compiled $(DOCS)/.ready  ## Record smelt demo on this machine, which should be quiet, and draw docs/demo.svg
	@mkdir $(FILM)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(DOCS)/bin/python docs/film/record.py docs/film/demo.cast $(FILM) smelt demo $(ARGS); \
	  code=$$?; rm -rf $(FILM); exit $$code
	@$(DOCS)/bin/python docs/film/draw.py docs/film/demo.cast docs/demo.svg

torture: $(VENV)/.ready  ## The long fault scenarios
	@$(BIN)/python -m pytest -m torture $(ARGS)

bench-reader: $(VENV)/.ready  ## The reader beside pg_recvlogical, over the same WAL
	@$(BIN)/python -m tests.benchmarks.bench_reader $(ARGS)

bench-latency: $(VENV)/.ready  ## How long after its commit a transaction can be read in bronze
	@$(BIN)/python -m tests.benchmarks.bench_latency $(ARGS)

bench-snapshot: $(VENV)/.ready  ## A snapshot into bronze beside psql's \copy of the same table
	@$(BIN)/python -m tests.benchmarks.bench_snapshot $(ARGS)

bench-silver: archive  ## Silver beside the template of row_number and MERGE, over the same changes
	@$(BIN)/python -m tests.benchmarks.bench_silver $(ARGS)

bench-gold: archive  ## Gold's incremental runs beside its full build and hand-written Spark SQL
	@$(BIN)/python -m tests.benchmarks.bench_gold $(ARGS)

bench-fresh: archive  ## How old a commit is when a query at the log's head shows it, beside silver and gold
	@$(BIN)/python -m tests.benchmarks.bench_fresh $(ARGS)

bench-verify: archive  ## A table compared with PostgreSQL, every row by content, beside psql's \copy of it
	@$(BIN)/python -m tests.benchmarks.bench_verify $(ARGS)

bench-scaling: archive compiled  ## How stages grow with tables, rows and transactions: the slopes of docs/scaling.md
	@$(BIN)/python -m tests.benchmarks.bench_scaling $(ARGS)

bench-size: archive compiled  ## A table of 10⁶, 10⁷ and 10⁸ rows through all stages: seconds, memory, disk; half an hour and 35 GB
	@$(BIN)/python -m tests.benchmarks.bench_size $(ARGS)

bench-month: archive compiled  ## A month of one pipeline with a clock that jumps: what grows, and the chart of docs/scaling/growth.md
	@$(BIN)/python -m tests.benchmarks.bench_month $(ARGS)

bench-first: archive compiled  ## The first commands on a database of 14 small tables, beside their bars
	@$(BIN)/python -m tests.benchmarks.bench_first $(ARGS)

readers: $(VENV)/.ready  ## Readers other than Spark on a table of each feature, as the matrix of docs/readers.md
	@$(UV) venv -q --clear --python $(PYTHON) .venv-readers
	@$(UV) pip install -q --python .venv-readers/bin/python polars duckdb deltalake==1.6.* pyarrow==26.*
	@folder=$$(mktemp -d) && $(BIN)/python -m tests.readers.tables $$folder \
	  && .venv-readers/bin/python -m tests.readers.matrix $$folder; code=$$?; rm -rf $$folder; exit $$code

lock: .uv-present  ## Compile both locks again from pyproject.toml
	@$(UV) pip compile -q pyproject.toml --extra demo --group dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --upgrade --custom-compile-command "make lock" -o requirements.lock
	@$(UV) pip compile -q --group docs --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --upgrade --custom-compile-command "make lock" -o requirements-docs.lock

java: python
	@PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m deltasmelt.pipelines.spark.java

# Spark starts in two thirds of the CPU time with it; without it (no network yet, say) everything works.
archive: java $(VENV)/.ready
	@$(BIN)/python -m deltasmelt.pipelines.spark.archive_training "Making an archive of Spark's classes (once)"

# Each process that a test starts would compile what it imports where PYTHONDONTWRITEBYTECODE is set.
compiled: $(VENV)/.ready
	@$(BIN)/python -m compileall -q deltasmelt bronze silver gold pipelines tests

.PHONY: python .uv-present archive compiled
python:
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or newer is missing; remedy: install it (Debian, Ubuntu: apt-get install python3 python3-venv; macOS: brew install python@3.12)" >&2; exit 1; }

.uv-present: python
	@command -v $(UV) >/dev/null 2>&1 || { echo "Installing uv into .uv (once)"; $(PYTHON) -m venv .uv && .uv/bin/pip install -q uv; }

$(VENV)/.ready: requirements.lock pyproject.toml | .uv-present
	@echo "Making the environment in $(VENV) (once)"
	@$(UV) venv -q --clear --python $(PYTHON) $(VENV)
	@UV_LINK_MODE=$${UV_LINK_MODE:-copy} $(UV) pip install -q --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	@$(UV) pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

$(DOCS)/.ready: requirements-docs.lock | .uv-present
	@echo "Making the environment of the documentation in $(DOCS) (once)"
	@$(UV) venv -q --clear --python $(PYTHON) $(DOCS)
	@UV_LINK_MODE=$${UV_LINK_MODE:-copy} $(UV) pip install -q --python $(DOCS)/bin/python --require-hashes -r requirements-docs.lock
	@touch $@

clean:  ## Remove the environment and caches; lakes stay
	rm -rf $(VENV) $(DOCS) .venv-readers .venv-matrix .uv site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
