# Needs Python 3.11 or newer, git and make; everything else goes into .venv.
#
#   make demo                        photos -> shards -> stream, on photos made for it
#   make demo IMAGES=/path/to/images the same on yours, which are only read
#   make test                        all tests
#   make check                       format, lint, types and all tests: what CI runs

PYTHON ?= python3
IMAGES ?= demo/photos
SHARDS ?= 8
# Another source of torch builds, for example https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=

RUN := .venv/bin/python -m
READY := .venv/ready

.PHONY: demo test static check environment clean

demo: $(READY)
ifeq ($(IMAGES),demo/photos)
	@.venv/bin/python benchmarks/photos.py demo/photos --count 2000 --classes 20
endif
	@echo
	@echo '$$ tarshard pack "$(IMAGES)" demo/packed --shards $(SHARDS) --on-error skip --overwrite'
	@$(RUN) tarshard pack "$(IMAGES)" demo/packed --shards $(SHARDS) --on-error skip --overwrite
	@echo
	@echo '$$ tarshard stream demo/packed --shuffle | tar tf - | sed "s/.*[.]//" | sort | uniq -c'
	@$(RUN) tarshard stream demo/packed --shuffle | tar tf - | sed 's/.*[.]//' | sort | uniq -c
	@echo
	@echo 'The shards and their index are in demo/packed. Next: tarshard stream --help'

test: $(READY)
	@$(RUN) pytest -q -n auto

static: $(READY)
	@$(RUN) ruff format --check .
	@$(RUN) ruff check .
	@$(RUN) mypy

check: static test

environment: $(READY)

# Made anew when a dependency changes. The size is said first: torch is large.
$(READY): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo 'tarshard needs Python 3.11 or newer; say which one: make PYTHON=python3.12'; exit 1; }
	@echo 'Installing into .venv, once.'
	@if [ -z "$(TORCH_INDEX)" ] && [ "$$(uname -s)" = Linux ]; then \
	    echo 'The usual torch build for Linux brings CUDA: up to 3 GB to download, 6 GB on disk.'; \
	    echo 'A CPU build takes 0.3 GB and 1.2 GB: make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu'; \
	fi
	@$(PYTHON) -m venv .venv
	@$(RUN) pip install --disable-pip-version-check --constraint constraints.txt \
	    $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") --editable '.[test,check]'
	@# The same OpenCV without windows, where the libraries of a desktop are missing.
	@.venv/bin/python -c 'import cv2' 2>/dev/null || { \
	    echo 'opencv-python cannot be loaded here (most often libGL is missing); taking opencv-python-headless.' && \
	    $(RUN) pip uninstall --yes opencv-python && \
	    $(RUN) pip install --disable-pip-version-check --constraint constraints.txt opencv-python-headless; }
	@touch $(READY)

clean:
	rm -rf .venv demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
