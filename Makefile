# `make demo` and `make test` set everything up by themselves, in .venv; the demo also writes to .demo.

VENV := .venv
BIN := $(VENV)/bin
DEMO := .demo/humaneval
INSTALL := $(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt

# Bytecode is kept, whatever the environment says: each process of the tests would compile it anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-long bench soak clean

help:
	@echo "make demo    run 164 real problems through perdure; again after a kill, it goes on"
	@echo "make test    linters, types, import arrows and all tests but the long ones"
	@echo "make test-long   the tests that kill whole suites, hosts and engines for minutes"
	@echo "make bench   what steps, tasks, leases, rollbacks and jobs cost, against plain Temporal"
	@echo "make soak    rollbacks by chance: thousands in the model, then on a server, workers killed"
	@echo "make clean   remove .venv, .demo and caches (runs stay in their state directory)"

# The stamp is touched last: an installation that was interrupted is taken up again.
$(VENV)/.ready: pyproject.toml constraints.txt
	@if ! $(BIN)/python -c 'import pip' 2>/dev/null; then \
	    found=; for python in "$(PYTHON)" python3 python3.13 python3.12 python3.11 /usr/bin/python3; do \
	        if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
	            2>/dev/null; then found=$$python; break; fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "perdure needs Python 3.11 or newer with its venv module; install it" \
	            "(Debian: python3-venv), or say make PYTHON=/path/to/python3" >&2; exit 2; \
	    fi; \
	    "$$found" -m venv --clear $(VENV) || exit 2; \
	fi
	@echo "installing into $(VENV) ($$($(BIN)/python --version)); later calls skip this"
	@$(INSTALL) setuptools
	@$(INSTALL) --no-build-isolation --editable '.[test]'
	@touch $@

demo: $(VENV)/.ready
	@$(BIN)/python examples/humaneval/make_tasks.py --out $(DEMO)
	@$(BIN)/perdure run $(DEMO) --suite humaneval

test: $(VENV)/.ready
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@# Meanwhile one process compiles the tests, or each of pytest's would.
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 & \
	    $(BIN)/mypy --strict && $(BIN)/lint-imports --no-logo; status=$$?; wait; exit $$status
	@$(BIN)/python -m pytest -n 4 --dist worksteal -m "not long" $(PYTEST_ARGS)

test-long: $(VENV)/.ready
	@$(BIN)/python -m pytest -n 4 --dist worksteal -m long $(PYTEST_ARGS)

bench: $(VENV)/.ready
	@$(BIN)/python benchmarks/steps.py
	@$(BIN)/python benchmarks/scale.py
	@$(BIN)/python benchmarks/pool.py
	@$(BIN)/python benchmarks/rollback.py
	@$(BIN)/python benchmarks/jobs.py

soak: $(VENV)/.ready
	@PERDURE_MODEL_TIMES=20 $(BIN)/python -m pytest -q --hypothesis-show-statistics \
	    tests/core/test_rollback_model.py
	@$(BIN)/python benchmarks/rollback_soak.py --seconds 300

clean:
	rm -rf $(VENV) .demo build dist *.egg-info
	rm -rf .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
