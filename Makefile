# Everything a person types. `make help` lists it; docs/install.md explains what is installed and why.
ENGINE ?= vllm
FLEET ?=
PORT ?=
TESTS ?= tests
PY := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help up down status install test check bench lock clean

help: ## this list
	@echo "make up [ENGINE=vllm|sim] [FLEET=file.yaml] [PORT=8000]"
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

up: ## install into .venv what is missing, start one region, print its URL, key and a curl line
	@scripts/bootstrap --engine $(ENGINE)
	@.venv/bin/dayzero up $(FLEET) --engine $(ENGINE) $(if $(PORT),--port $(PORT))

down: ## stop the region and everything it started
	@if [ -x .venv/bin/dayzero ]; then .venv/bin/dayzero down; else echo "nothing is installed here, so nothing runs"; fi

status: ## show replicas, load, health and what each is doing
	@if [ -x .venv/bin/dayzero ]; then .venv/bin/dayzero status; else echo "nothing is installed here: make up"; exit 3; fi

install: ## install the product (ENGINE=sim: without torch and vllm) and the development tools
	@scripts/bootstrap --engine $(ENGINE) --dev

test: ## install the real engine and the tools, run the tests (TESTS=path or -k word)
	@scripts/bootstrap --engine vllm --dev
	@$(PY) -m pytest $(TESTS)

check: ## format, lint, types, layers and the hygiene of the repository
	@scripts/bootstrap --engine sim --dev
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports
	@$(PY) -m pytest -q tests/unit/test_repository.py

bench: ## run the benchmarks and print their tables
	@scripts/bootstrap --engine sim --dev
	@set -e; for file in benchmarks/*.py; do echo "== $$file"; $(PY) "$$file"; done

lock: ## recompile requirements/*.lock (ARGS=--upgrade takes newer versions)
	@scripts/bootstrap --engine sim --dev
	@$(PY) -m scripts.lock $(ARGS)

clean: ## stop what runs here, remove .venv, .run and caches
	@$(MAKE) --no-print-directory down
	@rm -rf .venv .run .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
