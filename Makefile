# Everything a person types. `make help` lists it; docs/install.md explains what is installed and why.
ENGINE ?= vllm
FLEET ?=
PORT ?=
REGION ?=
VOCABULARY ?=
ID ?=
TESTS ?= tests
PY := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help up down status explain edge install test check bench lock clean

help: ## this list
	@echo "make up [ENGINE=vllm|sim] [REGION=us-east] [FLEET=file.yaml] [PORT=8000] [VOCABULARY=tiktoken.model]"
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

up: ## install into .venv what is missing, start the regions, print their URLs, the key and a curl line
	@scripts/bootstrap --engine $(ENGINE)
	@.venv/bin/dayzero up $(FLEET) $(if $(filter file,$(origin ENGINE)),,--engine $(ENGINE)) $(if $(PORT),--port $(PORT)) $(if $(REGION),--region $(REGION)) $(if $(VOCABULARY),--vocabulary '$(VOCABULARY)')

down: ## stop the regions (REGION=name: that one) and everything they started
	@if [ -x .venv/bin/dayzero ]; then .venv/bin/dayzero down $(if $(REGION),--region $(REGION)); else echo "nothing is installed here, so nothing runs"; fi

status: ## show each region's replicas, load, health and what each is doing (REGION=name: that one)
	@if [ -x .venv/bin/dayzero ]; then .venv/bin/dayzero status $(REGION) || case $$? in 1|3) ;; *) exit 1;; esac; else echo "nothing is installed here: make up"; fi

explain: ## why a request went where it went (ID=chatcmpl-…, as its answer says)
	@if [ -x .venv/bin/dayzero ]; then .venv/bin/dayzero explain '$(ID)' || case $$? in 1|3) ;; *) exit 1;; esac; else echo "nothing is installed here: make up"; fi

edge: ## a gateway alone before the regions that run, in the foreground (PORT=9000, FLEET=file.yaml, VOCABULARY=tiktoken.model)
	@if [ -x .venv/bin/dayzero ]; then exec .venv/bin/dayzero gateway $(FLEET) $(if $(PORT),--port $(PORT)) $(if $(VOCABULARY),--vocabulary '$(VOCABULARY)'); else echo "nothing is installed here: make up"; fi

install: ## install the product (ENGINE=sim: without torch and vllm) and the development tools
	@scripts/bootstrap --engine $(ENGINE) --dev

test: ## install the real engine and the tools, run the tests (TESTS=path or -k word)
	@scripts/bootstrap --engine vllm --dev
	@$(PY) -m scripts.run_tests $(TESTS)

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
	@rm -rf .venv .run .peers .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
