# The verbs of this repository, the same by hand and in CI. `make` alone explains them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
VENV_PYTHON := $(CURDIR)/.venv/bin/python
STAGE := scripts/stage
# A lock file that lags behind its manifest is refreshed by hand-run builds and refused in CI.
LOCKED := $(if $(CI),--locked)
export CARGO_TERM_PROGRESS_WHEN ?= $(if $(CI),never,auto)

# Cargo commands below select the whole workspace: on a part of it, dependencies would get fewer features and be compiled anew.

# What a stage made is remembered by a stamp, so that it is made again only when what it was made of has changed.
# Folders are in the list because deleting a file changes its folder alone.
ENVIRONMENT := .venv/.made
WHEEL := $(TARGET)/wheels/.built
INSTALLED := .venv/.installed
TORCH_FOLDER := crates/relevo-torch
WHEEL_SOURCES := Cargo.toml Cargo.lock pyproject.toml README.md LICENSE \
	$(shell find crates python \( -name __pycache__ -o -path $(TORCH_FOLDER) \) -prune -o -print)
TORCH := .venv/.torch
TORCH_WHEEL := $(TARGET)/wheels/.torch-built
TORCH_INSTALLED := .venv/.torch-installed
TORCH_MANIFEST := $(TORCH_FOLDER)/Cargo.toml
TORCH_SOURCES := $(shell find $(TORCH_FOLDER) crates/relevo-abi -name __pycache__ -prune -o -print)
# A target folder of its own, and the settings by which torch-sys finds the torch of .venv.
TORCH_SETTINGS := env LIBTORCH_USE_PYTORCH=1 VIRTUAL_ENV=$(CURDIR)/.venv PATH=$(CURDIR)/.venv/bin:$$PATH CARGO_TARGET_DIR=$(TARGET)/torch

##@ What most people want

.PHONY: demo
demo: $(INSTALLED) ## Build everything and run the main job: 64 actors on CartPole, recorded, read back, verified
	@$(STAGE) "running the demo" $(VENV_PYTHON) examples/demo.py

.PHONY: test
test: test-format test-rust test-python lint ## Run every test and check
	@printf '\n==> everything passed\n'

.PHONY: bench
bench: $(INSTALLED) ## Run the benchmarks; ratios are of one run
	@$(STAGE) "Rust benchmarks" scripts/with_onnxruntime cargo bench --workspace --bench '*' $(LOCKED)
	@if [[ -f benches/peers/run.py ]]; then $(STAGE) "side by side with others" $(VENV_PYTHON) benches/peers/run.py; fi

# Five minutes of it are in docs/benchmarks.md.
SOAK_SECONDS ?= 20

.PHONY: soak
soak: $(INSTALLED) ## Everything at once for SOAK_SECONDS (20), every action held against what its version gives
	@$(STAGE) "soak of $(SOAK_SECONDS) s" $(VENV_PYTHON) benches/soak.py --seconds $(SOAK_SECONDS)

.PHONY: demo-torch
demo-torch: $(TORCH_INSTALLED) ## Build the TorchScript backend, install torch (5 GB) beside it, and run TorchScript policies
	@$(STAGE) "running the demo of TorchScript" $(VENV_PYTHON) examples/torch/demo.py
	@$(STAGE) "training with hot swaps" $(VENV_PYTHON) examples/torch/hot_swap.py

##@ The parts of them

.PHONY: venv
venv: $(ENVIRONMENT) ## Create .venv with the pinned packages of requirements-dev.txt

.PHONY: wheel
wheel: $(WHEEL) ## Build the release wheel into target/wheels
	@ls -sh $(TARGET)/wheels/*.whl

.PHONY: install
install: $(INSTALLED) ## Install that wheel into .venv

.PHONY: test-format
test-format: $(ENVIRONMENT) ## Check formatting and Python lints: the quick ones, so they come first
	@$(STAGE) "formatting (Rust)" cargo fmt --all --check
	@$(STAGE) "formatting (Python)" $(VENV_PYTHON) -m ruff format --check .
	@$(STAGE) "ruff" $(VENV_PYTHON) -m ruff check .

.PHONY: test-rust
test-rust: $(WHEEL) ## Run the Rust tests, examples and doc tests
ifneq ($(shell command -v cargo-nextest),)
	@$(STAGE) "Rust tests" scripts/with_onnxruntime cargo nextest run --release --workspace $(LOCKED)
else
	@$(STAGE) "Rust tests" scripts/with_onnxruntime cargo test --release --workspace --tests $(LOCKED)
endif
	@$(STAGE) "Rust examples" cargo build --release --workspace --examples $(LOCKED)
	@$(VENV_PYTHON) examples/cartpole_policy.py $(TARGET)/cartpole.onnx
	@$(STAGE) "quick start in Rust" scripts/with_onnxruntime $(TARGET)/release/examples/quick_start $(TARGET)/cartpole.onnx
	@$(STAGE) "Rust doc tests" scripts/with_onnxruntime cargo test --release --workspace --doc $(LOCKED)

.PHONY: test-python
test-python: $(INSTALLED) ## Run the Python tests and the examples, against the installed wheel
	@$(STAGE) "Python tests and examples" $(VENV_PYTHON) -m pytest

.PHONY: test-torch
test-torch: $(TORCH_INSTALLED) ## Build the TorchScript backend, install torch (5 GB) beside it, and run its tests
	@$(STAGE) "TorchScript tests" $(VENV_PYTHON) -m pytest tests/torchscript tests/test_doctor.py tests/test_docs.py tests/test_dlpack.py tests/test_update_model.py
	@$(STAGE) "TorchScript demo" $(VENV_PYTHON) examples/torch/demo.py
	@$(STAGE) "Rust tests (TorchScript)" $(TORCH_SETTINGS) cargo test --release $(LOCKED) --manifest-path $(TORCH_MANIFEST) --test without_torch
	@$(STAGE) "clippy (TorchScript)" $(TORCH_SETTINGS) cargo clippy --release $(LOCKED) --manifest-path $(TORCH_MANIFEST) -- -D warnings

.PHONY: test-wheels
test-wheels: $(WHEEL) $(TORCH_WHEEL) ## Install both wheels into an empty environment (5 GB) and run both backends
	@$(STAGE) "both wheels in an empty environment" scripts/check_wheels $(PYTHON) $(TARGET)

.PHONY: lint
lint: test-format $(INSTALLED) ## Check formatting, lints, types, stubs and dependencies
	@$(STAGE) "types (mypy --strict)" $(VENV_PYTHON) -m mypy
	@$(STAGE) "stubs against the extension module" $(VENV_PYTHON) scripts/check_stubs.py --allowlist tests/stubtest-allowlist.txt
	@$(STAGE) "clippy" scripts/with_wheel_settings $(TARGET) cargo clippy --release --workspace --all-targets $(LOCKED) -- -D warnings
	@$(STAGE) "features shared by wheel and tests" $(VENV_PYTHON) scripts/check_shared_features.py
ifneq ($(shell command -v cargo-deny),)
	@$(STAGE) "licences, bans, sources" cargo deny check licenses bans sources
else
	@printf '\n==> skipped: licences, bans, sources (cargo-deny is not installed: cargo install --locked cargo-deny)\n'
endif

.PHONY: lock
lock: $(ENVIRONMENT) ## Refresh Cargo.lock and requirements-dev.txt to the newest versions that fit
	@$(STAGE) "Cargo.lock" cargo update
	@$(STAGE) "requirements-dev.txt" scripts/lock_python

.PHONY: clean
clean: ## Remove everything that was built, and .venv
	cargo clean
	rm -rf .venv dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

.PHONY: help
help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@printf '\nSet PYTHON=/path/to/python3 to choose the interpreter that .venv is made from.\n'

# --- what the verbs stand on ---

$(ENVIRONMENT): requirements-dev.txt scripts/create_environment
	@$(STAGE) "setting up .venv with $(PYTHON) (a minute or so the first time)" scripts/create_environment $(PYTHON)
	@touch $@

$(WHEEL): $(ENVIRONMENT) $(WHEEL_SOURCES)
	@rm -f $(TARGET)/wheels/relevo-*.whl
	@$(STAGE) "building the wheel (release, about 3 min the first time)" \
		$(VENV_PYTHON) -m maturin build --release $(LOCKED) --interpreter $(VENV_PYTHON) --out $(TARGET)/wheels
	@touch $@

# TorchScript's backend is compiled against the libraries of the torch that is in .venv.
$(TORCH): $(ENVIRONMENT) $(TORCH_FOLDER)/requirements.txt
	@$(STAGE) "installing torch into .venv (5 GB)" \
		$(VENV_PYTHON) -m pip install --disable-pip-version-check --quiet --requirement $(TORCH_FOLDER)/requirements.txt
	@touch $@

$(TORCH_WHEEL): $(TORCH) $(TORCH_SOURCES)
	@rm -f $(TARGET)/wheels/relevo_torch-*.whl
	@$(STAGE) "building the TorchScript backend's wheel (about 3 min the first time)" $(TORCH_SETTINGS) \
		$(VENV_PYTHON) -m maturin build --release $(LOCKED) --interpreter $(VENV_PYTHON) \
		--manifest-path $(TORCH_MANIFEST) --out $(TARGET)/wheels
	@touch $@

$(TORCH_INSTALLED): $(INSTALLED) $(TORCH_WHEEL)
	@$(STAGE) "installing the TorchScript backend into .venv" \
		$(VENV_PYTHON) -m pip install --disable-pip-version-check --quiet --no-deps --force-reinstall $(TARGET)/wheels/relevo_torch-*.whl
	@touch $@

$(INSTALLED): $(WHEEL)
	@$(STAGE) "installing the wheel into .venv" \
		$(VENV_PYTHON) -m pip install --disable-pip-version-check --quiet --no-deps --force-reinstall $(TARGET)/wheels/relevo-*.whl
	@touch $@
