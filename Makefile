# `make help` lists what there is. Everything runs in .venv, which is made when it is missing.
PYTHON ?= python3
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export DVC_NO_ANALYTICS := true
export MLFLOW_DISABLE_TELEMETRY := true
.DEFAULT_GOAL := help

.PHONY: help reproduce full paper smoke install test browser lint bench pull clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 12

reproduce: ## everything that needs no network beyond the package index; figures, verdicts, report
	@$(PYTHON) workflow/reproduce.py embedded

full: ## the same with the training seeds and controls that intervals need; some hours
	@$(PYTHON) workflow/reproduce.py full

paper: ## as full with the paper's checkpoints and texts, from the Hugging Face hub
	@$(PYTHON) workflow/reproduce.py paper

smoke: ## the same pipeline on tiny checkpoints, in a few minutes
	@$(PYTHON) workflow/reproduce.py smoke

install: .venv/installed ## the virtual environment .venv

.venv/installed: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v < (3, 14) else \
	"Python %d.%d is not supported: call make with PYTHON=python3.11, 3.12 or 3.13" % v[:2])'
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --constraint requirements.lock --editable '.[test,lint]'
	@touch $@

test: install browser ## every test
	python -m pytest -n 2 --dist loadfile --cov --cov-report=term:skip-covered --cov-fail-under=90

# The report is tested in a real browser.
browser: install
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
	apt-get update -qq && apt-get install -y -qq chromium; } || python -m playwright install chromium

lint: install ## ruff, mypy, snakefmt, snakemake --lint
	ruff check
	ruff format --check
	mypy
	snakefmt --check Snakefile workflow
	snakemake --lint

bench: install ## speed and memory, against the published notebook
	python benchmarks/run.py

pull: install ## outputs of the recorded run from the DVC remote, instead of computing them
	dvc pull
	snakemake --touch --cores all --quiet all

clean: ## what the pipeline made; never the DVC cache or MLflow
	rm -rf data/embedded data/full data/paper data/smoke figures report.html .snakemake
