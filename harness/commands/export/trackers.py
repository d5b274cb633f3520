"""Saved runs in a tracker of experiments (`export`): an entry for each run and subset.

Everything comes from the run's folder. Server, project, key and offline mode are the library's own
affair: its own variables and its files in the user's home decide, and nothing here reads them. Its
files in the current folder, which may come from somebody else, never decide where a run or a key is
sent. Sending a run again changes its entry instead of adding one.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import orjson

from harness.analysis.saved_runs import SavedRun
from harness.errors import BadInput, EndpointStopped, HarnessError, to_install
from harness.model import JSON
from harness.reporting.report_files import loaded
from harness.scoring.reports import Report
from harness.ui.streams import tell

T = TypeVar("T")
Scalar = bool | int | float | str
TAG = "harness.run"
"""MLflow finds the entry of a run by this tag."""
LONGEST = 500
"""Characters of a library's error that are shown."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a tracker has of a run. `config` and `id` stay the same for as long as the run has one
    configuration.

    `facts` and `summary` may change when the run goes on; None is a figure that is not defined (any
    more).
    """

    id: str
    run: str
    subset: str
    label: str
    config: Mapping[str, Scalar]
    facts: Mapping[str, Scalar]
    summary: Mapping[str, float | None]
    files: tuple[Path, ...]


WORKSPACE = Path("wandb", "settings"), Path(".wandb", "settings")
"""Of W&B, in the current folder; they override those in the user's home, and no argument leaves
them out."""


def check(tracker: str) -> None:
    """Raise `BadInput` if the library of a tracker cannot be imported, or would let the current
    folder decide where a run and the key are sent."""
    try:
        _ = _library(tracker).__version__  # a folder `wandb`, which W&B writes, is an empty module
    except (ImportError, AttributeError):
        raise BadInput(
            f"{tracker} is not installed here: {to_install(f'behavior-harness[{tracker}]')}"
        ) from None
    if tracker == "wandb" and (found := next(filter(os.path.lexists, WORKSPACE), None)):
        raise BadInput(
            f"{found} in the current folder could decide where W&B sends the run and your key: set"
            " the variables WANDB_MODE, WANDB_BASE_URL, WANDB_PROJECT or ~/.config/wandb/settings"
            " instead, and remove the file"
        )


def _library(tracker: str) -> Any:
    if tracker == "wandb":
        import wandb

        return wandb
    import mlflow

    return mlflow


def send(run: SavedRun, tracker: str) -> None:
    """Send a run to a tracker, and say where it is. Raise `BadInput` without a report,
    `EndpointStopped` for a tracker that fails, whatever it is: the folder has everything, so it can
    be sent again."""
    made = entry(run)
    try:
        where = SENDERS[tracker](made)
    except HarnessError:
        raise
    except Exception as error:  # other people's code
        words = re.sub(r"//[^/\s]*@", "//", " ".join(str(error).split()))
        raise EndpointStopped(
            f"{tracker} has not taken it: {type(error).__name__}: {words[:LONGEST]}"
        ) from None
    tell(f"{run.label}: {tracker}: {where}")


def entry(run: SavedRun) -> Entry:
    """Return what a tracker gets of a run. Raise `BadInput` if it has no report."""
    report, manifest = run.files.report("json"), run.manifest
    if not report.is_file():
        raise BadInput(f"no report yet: `report --name {run.name}` makes it")
    named = [run.name, run.files.subset, manifest.times["created"], manifest.identity]
    facts = {
        "state": manifest.state,
        "created": manifest.times["created"],
        "endpoint": manifest.provenance["endpoint"],
        "harness": manifest.provenance.get("harness"),
        "tasks": {"sha256": manifest.tasks["sha256"], "users": manifest.tasks["users"]},
        "selection": manifest.selection,
    }
    return Entry(
        id=sha256(orjson.dumps(named, option=orjson.OPT_SORT_KEYS)).hexdigest()[:22],
        run=run.name,
        subset=run.files.subset,
        label=run.label,
        config=dict(_flat({"run": run.name, "subset": run.files.subset, **manifest.identity})),
        facts=dict(_flat(facts)),
        summary=_summary(loaded(report)),
        files=tuple(_files(run)),
    )


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Scalar]]:
    """Yield the values of nested objects by dotted name, lists as JSON; leave out what is not
    set."""
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield (
                prefix + name,
                value if isinstance(value, Scalar) else orjson.dumps(value).decode(),
            )


def _summary(report: Report) -> dict[str, float | None]:
    """Return the figures of a report with their intervals, then coverage, answers, tokens and
    cost."""
    made: dict[str, float | None] = {}
    for name, of in report.values.items():
        low, high = of.ci95 or (None, None)
        made |= {name: of.value, f"{name}/ci95_low": low, f"{name}/ci95_high": high}
    covered, answers = report.coverage, report.diagnostics
    made |= {f"coverage/{name}": getattr(covered, name) for name in covered.__struct_fields__}
    made |= {"answers/all": answers.answers, "answers/valid": answers.valid_answers}
    made |= {f"usage/{name}": count for name, count in report.usage.items()}
    if report.cost and report.cost.money:
        made[f"cost/{report.cost.money.currency}"] = float(report.cost.money.amount)
    return {name: value if value is None else float(value) for name, value in made.items()}


def _files(run: SavedRun) -> Iterator[Path]:
    """Yield the files that are the run: by its own names and those of its manifest, never through
    links.

    Pages and exports can be made again at any time, and may have users' posts in them.
    """
    of = run.files
    named = of.manifest, of.report("txt"), of.report("json")
    logs = of.results, of.responses, of.failures, of.batches, of.events
    for path in (*named, *logs, *map(of.folder.joinpath, run.manifest.identity["files"])):
        if path.is_file() and not path.is_symlink():
            yield path


SETUP: JSON = {"silent": True, "disable_git": True, "sagemaker_disable": True}
"""Without a key W&B would ask on a terminal, and wait. It would start git in the current folder,
and on SageMaker take its settings from a file in there."""
QUIET: JSON = {
    "console": "off",
    "save_code": False,
    "disable_code": True,
    "disable_git": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
"""W&B would keep the command line, which may have a key in it, output, source code and the state of
this machine."""


def _wandb(made: Entry) -> str:
    library = _library("wandb")
    library.setup(library.Settings(**SETUP))
    settings = library.Settings(
        **QUIET, reinit="create_new"
    )  # a notebook may have a run of its own
    of = {"id": made.id, "name": made.label, "group": made.run, "job_type": made.subset}
    with _finished(library.init(**of, resume="allow", settings=settings)) as run:
        run.config.update({**made.config, **made.facts}, allow_val_change=True)
        run.summary.update(made.summary)
        artifact = library.Artifact(f"run-{made.id}", type="run", description=made.label)
        for path in made.files:
            artifact.add_file(str(path), name=path.name)
        logged = run.log_artifact(artifact)
        if not run.offline:
            logged.wait()  # raises what its upload raised
        return str(Path(run.dir).parent if run.offline else run.url)


@contextmanager
def _finished(run: Any) -> Iterator[Any]:
    """Yield a run of W&B and finish it; as a context manager it would print the traceback of an
    error."""
    try:
        yield run
    except BaseException:
        run.finish(exit_code=1)
        raise
    run.finish()


UNPRINTED = "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"
"""MLflow would print its server's address, with the password that may be in it."""


def _mlflow(made: Entry) -> str:
    library = _library("mlflow")
    os.environ[UNPRINTED] = "true"  # stdout is not ours to replace: other threads print there
    found = library.search_runs(
        filter_string=f"tags.`{TAG}` = '{made.id}'", output_format="list", max_results=1
    )
    known: JSON = (
        {"run_id": found[0].info.run_id}
        if found
        else {"run_name": made.label, "tags": {TAG: made.id}}
    )
    had = found[0].data.metrics if found else {}
    now = _allowed(made.summary)
    gone = {name: math.nan for name, value in now.items() if value is None and name in had}
    with library.start_run(**known, nested=True) as run:  # a notebook may have a run of its own
        if not library.is_tracking_uri_set():
            _check_artifacts(run.info.artifact_uri)
        library.set_tags(_allowed(made.facts))
        library.log_params(_allowed(made.config))
        library.log_metrics(
            gone
            | {name: value for name, value in now.items() if value not in (None, had.get(name))}
        )
        for path in made.files:
            library.log_artifact(str(path))
        return f"experiment {run.info.experiment_id}, run {run.info.run_id}"


def _check_artifacts(uri: str) -> None:
    """Raise `BadInput` if MLflow's database in the current folder sends files elsewhere, with
    MLflow's key."""
    place = urlsplit(uri)
    if place.scheme in ("", "file") and Path(unquote(place.path)).resolve().is_relative_to(
        Path.cwd().resolve()
    ):
        return
    raise BadInput(
        "MLflow's database in the current folder keeps files outside of this folder: set"
        " MLFLOW_TRACKING_URI to the database or server that you mean"
    )


def _allowed(values: Mapping[str, T]) -> dict[str, T]:
    """Return values by names that MLflow takes: `A^2 (b)` is `A_2 b`. Raise `ValueError` if two
    would have one name."""
    made = {
        re.sub(r"[^\w.\-/ ]", "_", re.sub("[()]", "", name)): value
        for name, value in values.items()
    }
    if len(made) < len(values):
        raise ValueError("two names differ only in characters that MLflow does not take")
    return made


SENDERS: dict[str, Callable[[Entry], str]] = {"wandb": _wandb, "mlflow": _mlflow}
