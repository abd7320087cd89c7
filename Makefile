# make run    compile, run and verify a real kernel, on the GPU if there is one, else in the emulator
# make test   the test suite: without the tests that are marked slow or listed in tests/long_tests.txt, and with a sample of the cases of
#             kernel and instruction tests
# make test-all   the whole test suite
# make lint   ruff, mypy, import directions
#
# Each target first creates .venv, which requires only Python 3.11 or newer, and reuses it in later calls.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN ?= fused_l2norm 128 4096 100
PYTEST_WORKERS ?= auto
PYTEST_ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
INSTALL := $(BIN)/python -m pip install --quiet

.PHONY: run test test-all lint lint-style lint-types lint-imports clean
.DELETE_ON_ERROR:

run: $(VENV)/.installed
	$(BIN)/ptxkit run $(RUN)

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal $(PYTEST_ARGS)

test-all:
	$(MAKE) test PYTEST_ARGS="--slow $(PYTEST_ARGS)"

lint: lint-style lint-types lint-imports

lint-style lint-types lint-imports: $(VENV)/.installed-lint

lint-style:
	$(BIN)/ruff check .

lint-types:
	$(BIN)/mypy

lint-imports:
	$(BIN)/lint-imports

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON) here; apt install python3 python3-venv, or make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is older than 3.11; make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: $(PYTHON) cannot make virtual environments; apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Each of these installs everything that the ones before it install, so that `make lint test` in a new .venv installs once.
$(VENV)/.installed: $(VENV)/.created pyproject.toml setup.py
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.created pyproject.toml setup.py
	$(INSTALL) --editable '.[test]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-lint: $(VENV)/.created pyproject.toml setup.py
	$(INSTALL) --editable '.[test,lint]'
	@touch $(VENV)/.installed $(VENV)/.installed-test $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
