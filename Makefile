# The two commands of the README are `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUITE ?= quick

.PHONY: run test check format benchmarks clean

run: $(VENV)/installed
	$(BIN)/perflab run suite $(SUITE)
	@echo "page: $$($(BIN)/perflab dashboard build)"

test: $(VENV)/tested
	$(MAKE) check

# Everything that CI runs.
check:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest

format: $(VENV)/tested
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmarks: $(VENV)/installed
	$(BIN)/python benchmarks/must_reach.py

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable .
	touch $@

# The tests drive a real browser; where Debian's packages can be installed, they are.
$(VENV)/tested: $(VENV)/installed
	$(BIN)/pip install --quiet --editable '.[dev]'
	@command -v chromium >/dev/null || ./.ci/install-chromium
	touch $@

clean:
	rm -rf $(VENV) site
