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
MAX_ERROR_CHARACTERS = 500
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


WANDB_FILES = Path("wandb", "settings"), Path(".wandb", "settings")
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
    if tracker != "wandb":
        return
    for path in filter(os.path.lexists, WANDB_FILES):
        raise BadInput(
            f"{path} in the current folder could decide where W&B sends the run and your key: set"
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
    sent = entry(run)
    try:
        place = SENDERS[tracker](sent)
    except HarnessError:
        raise
    except Exception as error:  # other people's code
        message = re.sub(r"//[^/\s]*@", "//", " ".join(str(error).split()))
        raise EndpointStopped(
            f"{tracker} has not taken it: {type(error).__name__}: {message[:MAX_ERROR_CHARACTERS]}"
        ) from None
    tell(f"{run.label}: {tracker}: {place}")


def entry(run: SavedRun) -> Entry:
    """Return what a tracker gets of a run. Raise `BadInput` if it has no report."""
    report = run.files.report("json")
    manifest = run.manifest
    if not report.is_file():
        raise BadInput(f"no report yet: `report --name {run.name}` makes it")
    subset = run.files.subset
    created = manifest.times["created"]
    # The same run has the same entry, however often it is sent.
    unique = orjson.dumps(
        [run.name, subset, created, manifest.identity], option=orjson.OPT_SORT_KEYS
    )
    config = {"run": run.name, "subset": subset, **manifest.identity}
    facts = {
        "state": manifest.state,
        "created": created,
        "endpoint": manifest.provenance["endpoint"],
        "harness": manifest.provenance.get("harness"),
        "tasks": {"sha256": manifest.tasks["sha256"], "users": manifest.tasks["users"]},
        "selection": manifest.selection,
    }
    return Entry(
        id=sha256(unique).hexdigest()[:22],
        run=run.name,
        subset=subset,
        label=run.label,
        config=dict(_flat(config)),
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
        elif isinstance(value, Scalar):
            yield prefix + name, value
        elif value is not None:
            yield prefix + name, orjson.dumps(value).decode()


def _summary(report: Report) -> dict[str, float | None]:
    """Return the figures of a report with their intervals, then coverage, answers, tokens and
    cost."""
    summary: dict[str, float | None] = {}
    for name, figure in report.values.items():
        low, high = figure.ci95 or (None, None)
        summary |= {name: figure.value, f"{name}/ci95_low": low, f"{name}/ci95_high": high}
    coverage = report.coverage
    for name in coverage.__struct_fields__:
        summary[f"coverage/{name}"] = getattr(coverage, name)
    summary["answers/all"] = report.diagnostics.answers
    summary["answers/valid"] = report.diagnostics.valid_answers
    summary |= {f"usage/{name}": count for name, count in report.usage.items()}
    if report.cost and report.cost.money:
        summary[f"cost/{report.cost.money.currency}"] = float(report.cost.money.amount)
    return {name: None if value is None else float(value) for name, value in summary.items()}


def _files(run: SavedRun) -> Iterator[Path]:
    """Yield the files that are the run: by its own names and those of its manifest, never through
    links.

    Pages and exports can be made again at any time, and may have users' posts in them.
    """
    files = run.files
    for path in (
        files.manifest,
        files.report("txt"),
        files.report("json"),
        files.results,
        files.responses,
        files.failures,
        files.batches,
        files.events,
        *map(files.folder.joinpath, run.manifest.identity["files"]),
    ):
        if path.is_file() and not path.is_symlink():
            yield path


WANDB_SETUP: JSON = {"silent": True, "disable_git": True, "sagemaker_disable": True}
"""Without a key W&B would ask on a terminal, and wait. It would start git in the current folder,
and on SageMaker take its settings from a file in there."""
WANDB_SETTINGS: JSON = {
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


def _wandb(sent: Entry) -> str:
    library = _library("wandb")
    library.setup(library.Settings(**WANDB_SETUP))
    # A notebook may have a run of its own.
    settings = library.Settings(**WANDB_SETTINGS, reinit="create_new")
    identity = {"id": sent.id, "name": sent.label, "group": sent.run, "job_type": sent.subset}
    with _finished(library.init(**identity, resume="allow", settings=settings)) as run:
        run.config.update({**sent.config, **sent.facts}, allow_val_change=True)
        run.summary.update(sent.summary)
        artifact = library.Artifact(f"run-{sent.id}", type="run", description=sent.label)
        for path in sent.files:
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


MLFLOW_SUPPRESS_ADDRESS = "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"
"""MLflow would print its server's address, with the password that may be in it."""


def _mlflow(sent: Entry) -> str:
    library = _library("mlflow")
    # stdout is not ours to replace: other threads print there.
    os.environ[MLFLOW_SUPPRESS_ADDRESS] = "true"
    known_runs = library.search_runs(
        filter_string=f"tags.`{TAG}` = '{sent.id}'", output_format="list", max_results=1
    )
    about: JSON = {"run_name": sent.label, "tags": {TAG: sent.id}}
    old_metrics: Mapping[str, float] = {}
    for known in known_runs:
        about = {"run_id": known.info.run_id}
        old_metrics = known.data.metrics

    # A metric cannot be removed: one that is no longer defined becomes NaN.
    metrics = dict[str, float]()
    for name, value in _allowed(sent.summary).items():
        if value is None and name in old_metrics:
            metrics[name] = math.nan
        elif value is not None and value != old_metrics.get(name):
            metrics[name] = value

    # A notebook may have a run of its own open: this one is below it.
    with library.start_run(**about, nested=True) as run:
        if not library.is_tracking_uri_set():
            _check_artifacts(run.info.artifact_uri)
        library.set_tags(_allowed(sent.facts))
        library.log_params(_allowed(sent.config))
        library.log_metrics(metrics)
        for path in sent.files:
            library.log_artifact(str(path))
        return f"experiment {run.info.experiment_id}, run {run.info.run_id}"


def _check_artifacts(uri: str) -> None:
    """Raise `BadInput` if MLflow's database in the current folder sends files elsewhere, with
    MLflow's key."""
    address = urlsplit(uri)
    path = Path(unquote(address.path)).resolve()
    if address.scheme in ("", "file") and path.is_relative_to(Path.cwd().resolve()):
        return
    raise BadInput(
        "MLflow's database in the current folder keeps files outside of this folder: set"
        " MLFLOW_TRACKING_URI to the database or server that you mean"
    )


def _allowed(values: Mapping[str, T]) -> dict[str, T]:
    """Return values by names that MLflow takes: `A^2 (b)` is `A_2 b`. Raise `ValueError` if two
    would have one name."""
    allowed = dict[str, T]()
    for name, value in values.items():
        without_brackets = re.sub("[()]", "", name)
        allowed[re.sub(r"[^\w.\-/ ]", "_", without_brackets)] = value
    if len(allowed) < len(values):
        raise ValueError("two names differ only in characters that MLflow does not take")
    return allowed


SENDERS: dict[str, Callable[[Entry], str]] = {"wandb": _wandb, "mlflow": _mlflow}
