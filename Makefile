# Two commands do everything, set-up included: `make serve` and `make test`.
BIN := .venv/bin
ARGS ?=

.PHONY: help install dev model test-model serve native test prove sanitize sanitize-threads check format format-check \
	lint types contracts dashboards

help: ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

install: ## Install the product into .venv.
	@ops/setup.sh run

dev: ## Install the product and the tools for tests into .venv.
	@ops/setup.sh dev

model: ## Pull the default model pack (SmolLM2-135M-Instruct, a download of 93 MB).
	@$(BIN)/quarterdeck models pull smollm2

serve: install model ## Install, pull the model, serve; flags in ARGS="--port 9000".
	@exec $(BIN)/quarterdeck serve $(ARGS)

test-model: install ## Pull the model that only tests use (Gemma 3 270M, a download of 238 MB).
	@$(BIN)/quarterdeck models pull gemma3-270m --accept-licence

native: ## Compile the CPU kernels again, what changed of them.
	@$(BIN)/python ops/compile_kernels.py

test: dev model test-model ## Run the tests.
	@OMP_NUM_THREADS=1 $(BIN)/pytest -q -m "not gpu and not prove" -n 2 --dist loadfile $(ARGS)

prove: dev model test-model ## Run the long tests too.
	@$(BIN)/pytest -q -m "not gpu" --timeout 600 $(ARGS)

sanitize: dev ## Run the tests of the CPU kernels with address and undefined behaviour sanitizers.
	@ops/sanitize.sh address $(ARGS)

sanitize-threads: dev ## Run the tests of the kernels' threads with the thread sanitizer.
	@ops/sanitize.sh thread $(ARGS)

check: dev format-check lint types contracts test ## Everything that must be green.

format: dev ## Format the code.
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

format-check: dev
	@$(BIN)/ruff format --check .

lint: dev
	@$(BIN)/ruff check .

types: dev
	@$(BIN)/basedpyright

dashboards: dev ## Generate the Grafana dashboards from their code.
	@$(BIN)/python -m ops.grafana.build

contracts: dev
	@$(BIN)/lint-imports
