"""StreamProfileBench as a benchmark: how a user is played, measured and recorded (docs/design.md, section 8)."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson

from harness import config
from harness.benchmarks.again import checked
from harness.benchmarks.answers import Unreadable, ask_until_read
from harness.benchmarks.records import read_of
from harness.benchmarks.streamprofile import prompt as prompts
from harness.benchmarks.streamprofile import task as tasks
from harness.benchmarks.streamprofile.metrics import StepMetrics, measure_step
from harness.benchmarks.streamprofile.platforms import PLATFORMS
from harness.benchmarks.streamprofile.reply import read
from harness.benchmarks.streamprofile.scorer import ProfileScorer
from harness.benchmarks.streamprofile.task import Given, GivenStep, ProfileTask
from harness.benchmarks.template import Unplayed
from harness.errors import BadInput, shown
from harness.model import JSON, Ask, Usage, Where

SUBSETS = tuple(PLATFORMS)
VALID = "valid"
SYNTHETIC = "The tasks are synthetic: they show that the harness works, and say nothing of real users."
_CALL_FAILED = re.compile(r"Error: (?:Error code: \d|Connection|Request timed out)")
_NO_JSON = re.compile(r"json|parse|decode|expecting|\(char \d+\)$|expected string or bytes", re.IGNORECASE)
"""What Python's `json` says of a reply (each complaint of it ends in the place), and `re` of one without content."""


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """One step: `outcome` is `valid` or the kind of an invalid answer, whose prediction is empty.

    `persona` is what goes into the next step: the new summary, or the previous one where there was none.
    """

    prediction: tuple[str, ...]
    persona: str
    reasoning: str
    outcome: str
    repairs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProfileAnswer:
    steps: tuple[StepAnswer, ...]
    usage: Usage


class StreamProfile:
    name = "streamprofile"
    key_field = "user_id"
    truth = ""
    prompt_version = "1"
    parser_version = "2"
    task_version = "1"
    subsets = SUBSETS

    def __init__(
        self,
        prompt: prompts.Prompt,
        *,
        persona: bool = True,
        json_object: bool = True,
        parse_retries: int = config.PARSE_RETRIES,
    ) -> None:
        self._prompt = prompt
        self._persona = persona
        self._json_object = json_object
        self._parse_retries = parse_retries

    @property
    def prompt(self) -> str:
        return self._prompt.source

    @property
    def source(self) -> Path | None:
        """The prompt's file, None for our own."""
        return self._prompt.path

    @property
    def files(self) -> dict[str, bytes]:
        """The bytes that define the prompt, by the names under which a run's folder keeps them."""
        return dict(self._prompt.files)

    def identity(self) -> JSON:
        return {
            "prompt": self.prompt,
            "persona": self._persona,
            "structured": "json_object" if self._json_object else "none",
            "parse_retries": self._parse_retries,
        }

    def on_warning(self, hear: Callable[[str], None]) -> None:
        """There is nothing to warn of."""

    def check(self, line: bytes, where: Where, subset: str) -> tuple[str, int]:
        data = tasks.check(line, where, subset)
        return str(data["user_id"]), len(data["prediction_tasks"])

    def load(self, line: bytes, subset: str) -> ProfileTask:
        return tasks.build(orjson.loads(line))

    def steps(self, task: ProfileTask) -> int:
        return len(task.given.steps)

    async def play(self, task: ProfileTask, ask: Ask) -> ProfileAnswer:
        persona, usage, answers = "", Usage(), []
        for step in task.given.steps:
            answer, usage = await self._step(task.subset, task.given, step, persona, ask, usage)
            answers.append(answer)
            persona = answer.persona if self._persona else ""
        return ProfileAnswer(tuple(answers), usage)

    async def _step(
        self, subset: str, given: Given, step: GivenStep, persona: str, ask: Ask, usage: Usage
    ) -> tuple[StepAnswer, Usage]:
        messages = self._prompt.messages(subset, given, step, persona)
        reading, usage = await ask_until_read(
            ask, messages, self._json_object, self._parse_retries, lambda completion: read(completion, step.pool), usage
        )
        if isinstance(reading, Unreadable):
            return StepAnswer((), persona, "", reading.kind, ()), usage
        new = reading.persona if reading.persona.strip() else persona
        return StepAnswer(reading.tags, new, reading.reasoning, VALID, reading.repairs), usage

    def measure(self, task: ProfileTask, answer: ProfileAnswer) -> tuple[StepMetrics, ...]:
        return tuple(
            measure_step(truth, step, said.prediction)
            for truth, step, said in zip(task.truth, task.given.steps, answer.steps, strict=True)
        )

    def record(self, task: ProfileTask, answer: ProfileAnswer, metrics: tuple[StepMetrics, ...]) -> JSON:
        steps = [
            {
                "step_id": step.step_id,
                "prediction": said.prediction,
                "ground_truth": truth.listed,
                "metrics": measured.values,
                "reasoning": said.reasoning,
                "persona_summary": said.persona,
                "outcome": said.outcome,
                "repairs": said.repairs,
                **_measured_beside(step, measured),
            }
            for step, truth, said, measured in zip(task.given.steps, task.truth, answer.steps, metrics, strict=True)
        ]
        return {
            **_who(task),
            "steps": steps,
            "usage": answer.usage.data,
        }

    def rescore(self, task: ProfileTask, data: JSON) -> JSON:
        with read_of(task.key):
            return self._rescored(task, data)

    def _rescored(self, task: ProfileTask, data: JSON) -> JSON:
        from_authors = "usage" not in data
        given = {step.step_id: (step, truth) for step, truth in zip(task.given.steps, task.truth, strict=True)}
        _check_steps(task, data)
        steps = []
        for saved in data["steps"]:
            step, truth = given[saved["step_id"]]
            prediction = tuple(dict.fromkeys(saved["prediction"]))
            measured = measure_step(truth, step, prediction)
            again = {**saved, "prediction": prediction, "metrics": measured.values}
            if from_authors:
                again |= {"ground_truth": truth.listed, "outcome": authors_outcome(saved), "repairs": ()}
            again.pop("metrics_at_asked", None)
            steps.append(again | _measured_beside(step, measured))
        return {**data, "steps": steps}

    def remark(self, task: ProfileTask) -> str:
        return SYNTHETIC if task.synthetic else ""

    def scorer(self, subset: str) -> ProfileScorer:
        return ProfileScorer(subset, self.prompt_version)


def _check_steps(task: ProfileTask, data: JSON) -> None:
    """Raises `BadInput` where a user's steps are not those of the task, each once: what scores a part of them, or one
    of them twice, is no score of this user."""
    seen = set()
    known = {step.step_id for step in task.given.steps}
    for saved in data["steps"]:
        number = saved["step_id"]
        if number not in known:
            raise BadInput(f"user {task.key}: step_id {shown(number)} of the results is not in the tasks file")
        if number in seen:
            raise BadInput(f"user {task.key}: step_id {number} stands there twice")
        seen.add(number)
    if missing := known - seen:
        raise BadInput(f"user {task.key}: {len(missing)} of {len(known)} steps are missing, as step_id {min(missing)}")


def _who(task: ProfileTask) -> JSON:
    return {"user_id": task.given.user_id, "platform": task.platform, "username": task.given.username}


def _measured_beside(step: GivenStep, measured: StepMetrics) -> JSON:
    """What the scorer needs of a step beside its metrics."""
    beside: JSON = {"asked": step.asked, "out_of_pool": measured.out_of_pool, "ceiling": measured.ceiling}
    if measured.at_asked is not None:
        beside["metrics_at_asked"] = measured.at_asked
    return beside


def authors_outcome(saved: JSON) -> str:
    """How a step of the authors' runner ended. That runner writes `Error: ...` as the reasoning of a step that
    predicted nothing: after an API failure, or after a reply in which it found no JSON."""
    reasoning: str = saved["reasoning"]
    if saved["prediction"] or not reasoning.startswith("Error:"):
        return VALID
    if _CALL_FAILED.match(reasoning):  # whose message may well speak of JSON
        return "authors_api_failure"
    return "authors_no_json" if _NO_JSON.search(reasoning) else "authors_api_failure"


def files_needed(subset: str) -> tuple[str, ...]:
    return (f"{subset}_inference_tasks.jsonl",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("StreamProfileBench (`--prompt` also takes the authors' own bench_task.py)")
    group.add_argument("--no-persona", action="store_true", help="ablation: carry no persona from step to step")


def settings(args: argparse.Namespace, folder: Path) -> JSON:
    """The settings that a command's options make."""
    return {
        "prompt": args.prompt,
        "persona": not args.no_persona,
        "structured": args.structured,
        "parse_retries": config.PARSE_RETRIES if args.parse_retries is None else args.parse_retries,
    }


def settings_again(identity: JSON, source: Path | None, folder: Path) -> JSON:
    """The settings of an earlier run, from what its manifest says and where its prompt is now."""
    made = checked(identity, {"prompt": str}, {"persona": bool, "structured": str, "parse_retries": int})
    return {**made, "prompt": source, "prompt_source": made["prompt"]}


def configure(settings: JSON | None = None) -> StreamProfile:
    """The benchmark with settings as the functions above make them; without any, as it is by default."""
    made = settings or {}
    return StreamProfile(
        prompts.load(made.get("prompt"), made.get("digests"))
        if made.get("play", True)
        else Unplayed(made["prompt_source"]),
        persona=made.get("persona", True),
        json_object=made.get("structured", "json_object") == "json_object",
        parse_retries=made.get("parse_retries", config.PARSE_RETRIES),
    )
