# `make demo` trains a model on four ranks, `make test` checks everything.
# Both make .venv first, and use it again while it is current.

PYTHON ?= python3
TORCH := torch==2.13.0# the one place that pins it
SOURCES := axograph tests examples benchmarks

.PHONY: test lint demo venv clean

test: lint
	.venv/bin/python -m pytest -n 2 --dist loadfile

lint: venv
	.venv/bin/python -m ruff format --check $(SOURCES)
	.venv/bin/python -m ruff check $(SOURCES)
	.venv/bin/python -m mypy

demo: venv
	.venv/bin/python examples/01_train_llama.py

venv: .venv/current

# torch comes first, by itself, so that no other package chooses its build.
.venv/current: Makefile pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv/bin/python -m pip install --quiet $(TORCH)
	.venv/bin/python -m pip install --quiet --editable ".[hf,report]" --group dev
	touch $@

clean:
	rm -rf .venv dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
