# Two commands: make vmtest, make check. Each does all of its set-up. SCALE=1 adds `make scale` to the former.
VENV ?= .venv
PY := $(VENV)/bin/python

FLAVOURS := kasan lockdep kmemleak kcsan profile

.PHONY: vmtest check guestcheck kernels sndbuf scale bench mutants faults soak setup $(FLAVOURS)

vmtest: setup
	$(VENV)/bin/perpatch run $(ARGS)
	$(if $(filter 1,$(SCALE)),$(MAKE) scale ARGS=)

check: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) -m pytest -q vm/tests

# What needs real guests: dying ones, the shell, Ctrl-C; then one step under virtme-ng's root, which must agree.
guestcheck: setup
	$(PY) -m pytest -q -m guest vm/tests/guest
	$(VENV)/bin/perpatch run --guest vng --step 3 $(ARGS)

# The same contract on the kernels that a distribution ships, beside our own steps.
kernels: setup
	$(VENV)/bin/perpatch run --step all --kernel debian:5.10 --kernel debian:6.1 --kernel debian:6.12 --kernel debian:7 $(ARGS)

# The last step as a kernel that watches itself: memory, locks, leaks, data races; or one that times its functions.
$(FLAVOURS): setup
	$(VENV)/bin/perpatch run --step 3 --flavour $@ $(ONLY) $(ARGS)

profile: ONLY := -m profile

# Two designs against the spin of writers with SO_SNDBUF under memory pressure, each on its base.
sndbuf: setup
	$(VENV)/bin/perpatch run --series sndbuf-pressure-v2 selftests/sndbuf_pressure $(ARGS)
	$(VENV)/bin/perpatch run --series sndbuf-pressure-onebit selftests/sndbuf_pressure $(ARGS)

# The same spin at its full size: 40,000 idle sockets, 20,000 streams.
scale: setup
	$(VENV)/bin/perpatch run --series sndbuf-pressure-v2 -m scale selftests/sndbuf_pressure $(ARGS)
	$(VENV)/bin/perpatch run --series sndbuf-pressure-onebit -m scale selftests/sndbuf_pressure $(ARGS)

# Every way in which a guest, the host or a series can fail, and what must come of it: docs/faults.md.
faults: setup
	$(if $(ARGS),,rm -f docs/faults.json)
	$(PY) -m pytest -q -m fault vm/tests/faults --faults docs/faults.json $(ARGS)
	$(VENV)/bin/perpatch docs

# 200 boots and 2,000 resumed cases: nothing lost, nothing left.
soak: setup
	$(PY) -m vm.soak $(ARGS)

bench: setup
	$(PY) -m vm.bench

# Every deliberate break in patches/mutants must turn some case red: those that name it come first.
mutants: setup
	$(VENV)/bin/perpatch mutate $(ARGS)

setup: $(VENV)/done
	@sh vm/setup.sh tools

$(VENV)/done: pyproject.toml vm/setup.sh
	@sh vm/setup.sh venv $(VENV)
	@touch $@
