# Every target works from a clean clone with python3 and make alone: the first one to run makes .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: setup test check format demo bench clean

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

test: setup ## all tests
	$(BIN)/python -m pytest -n auto

check: setup ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: setup ## the paper's experiments in two minutes, and every structure drawn
	$(BIN)/natgrad structures --out demo
	$(BIN)/natgrad reproduce rosenbrock --out demo
	$(BIN)/natgrad reproduce dixon-price --out demo

bench: setup ## the structures, minimize against its peers, and what a step of NGD costs (hours); results go to benchmarks/results
	$(BIN)/natgrad bench groups
	$(BIN)/natgrad bench minimize
	$(BIN)/natgrad bench optim speed
	$(BIN)/natgrad bench optim cost

clean:
	rm -rf .venv demo dist .pytest_cache .ruff_cache .hypothesis
