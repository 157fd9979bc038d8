# Two commands matter: `make run` and `make test`. Each makes its own .venv when needed and does the whole job on
# a machine with Python 3.11 or newer and nothing else.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed
BENCH_INSTALLED := .venv/.bench-installed
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: run test coverage check bench results docs site clean

run: $(INSTALLED)  ## a guard on the embedded sample, then the paper's comparison on the embedded digits, with a report
	$(BIN)/normscale doctor
	mkdir -p run
	$(BIN)/normscale fit sample:train -o run/detector.safetensors --threshold-on sample:validation --keep 0.95
	$(BIN)/normscale score run/detector.safetensors sample:unseen_digits -o run/unseen_scores.csv
	$(BIN)/normscale bench --preset digits --workers 2 -o run/digits

test: $(INSTALLED)  ## the whole test suite; `.venv/bin/pytest -m "not slow" -n 2` is the part that answers soon
	$(BIN)/python -m pytest -n 2 --dist loadgroup

coverage: $(INSTALLED)  ## the whole test suite, and which lines and branches no test enters (servers and workers are not counted)
	$(BIN)/python -m pytest -n 2 --dist loadgroup --cov --cov-report=term-missing:skip-covered

check: $(INSTALLED)  ## ruff and mypy --strict
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(BENCH_INSTALLED)  ## speed and memory against the peers, each a ratio within one run
	$(BIN)/python benchmarks/run.py

results: $(INSTALLED)  ## every record of docs/results/ that can be made here, with today's code; RUNS and RESNET20 say where outputs are
	nice -n 10 $(BIN)/python tools/record.py --runs $(or $(RUNS),runs) $(if $(RESNET20),--resnet20 $(RESNET20))
	$(BIN)/python tools/write_pages.py
	$(BIN)/python tools/draw_pictures.py

docs: $(INSTALLED)  ## write docs/cli.md anew from --help, and the pages' tables from docs/results/
	$(BIN)/python tools/write_cli_reference.py
	$(BIN)/python tools/write_pages.py

site: $(INSTALLED)  ## the documentation site in site/; a warning or a broken link is an error
	$(BIN)/python -m sphinx --quiet --fail-on-warning --conf-dir docs --doctree-dir .venv/doctrees . site

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install --upgrade "pip>=25.1"
	$(PIP) install --constraint constraints.txt torch torchvision  # first, so that nothing else chooses their build
	$(PIP) install --constraint constraints.txt --group dev --editable ".[fast,arrow,torch,data,networks,report,serve,postgres,onnx,ray]"
	touch $@

$(BENCH_INSTALLED): $(INSTALLED) benchmarks/requirements.txt benchmarks/requirements-no-deps.txt
	$(PIP) install --constraint constraints.txt --requirement benchmarks/requirements.txt
	$(PIP) install --no-deps --requirement benchmarks/requirements-no-deps.txt
	touch $@

clean:
	rm -rf .venv run site .pytest_cache .mypy_cache .ruff_cache .hypothesis
