# Two commands: make vmtest, make check. Each does all of its set-up.
VENV ?= .venv
PY := $(VENV)/bin/python

.PHONY: vmtest check guestcheck bench mutants setup

vmtest: setup
	$(VENV)/bin/perpatch run $(ARGS)

check: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) -m pytest -q vm/tests -m "not guest"

# What needs real guests: dying ones, the shell, Ctrl-C; then one step under virtme-ng's root, which must agree.
guestcheck: setup
	$(PY) -m pytest -q vm/tests/guest
	$(VENV)/bin/perpatch run --guest vng --step 3 $(ARGS)

bench: setup
	$(PY) -m vm.bench

# Every deliberate break in patches/mutants must turn red the cases that name it.
mutants: setup
	$(VENV)/bin/perpatch mutate $(ARGS)

setup: $(VENV)/done
	@sh vm/setup.sh tools

$(VENV)/done: pyproject.toml vm/setup.sh
	@sh vm/setup.sh venv $(VENV)
	@touch $@
