"""DailyMobility as a benchmark: how a resident is played, measured and recorded (docs/design.md, section 9)."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from harness import config
from harness.benchmarks.again import checked
from harness.benchmarks.answers import FINAL_REASONS
from harness.benchmarks.dailymobility import groundtruth, plan, task
from harness.benchmarks.dailymobility.agents import KEPT, AgentFile, Stage, load_agent
from harness.benchmarks.dailymobility.city import City, load_city
from harness.benchmarks.dailymobility.day import INTENTIONS, NUMBERS, ROWS, SLOTS, VALID, Day, DayMetrics, Resident
from harness.benchmarks.dailymobility.groundtruth import GroundTruth
from harness.benchmarks.dailymobility.measures import gyration_radius, intention_sequence, proportions, visited
from harness.benchmarks.dailymobility.scorer import MobilityScorer
from harness.benchmarks.records import read_of
from harness.benchmarks.template import Unplayed
from harness.errors import AgentFailed, BadInput, shown
from harness.model import JSON, Ask, Completion, Request, Usage, Where

SUBSETS = ("beijing",)
FOLDER = "dailymobility"
"""Below the tasks folder: the data as published."""

FILES = (
    "profiles.json",
    "beijing.pb",
    *(f"{groundtruth.FOLDER}/{name}.npy" for name in groundtruth.FILES),
)
SIMULATOR_VERSION = "1"
AGENT_STEPS = 100
"""Requests that an agent's day is expected to take, for the schedule: one a step. It may take fewer or more."""

IDENTITIES = ("structured", "parse_retries", "simulator", "agent_seed")
"""What the modes say of themselves in a run's identity."""

NO_REPLY = frozenset({*FINAL_REASONS, "refusal", "empty"})
"""Why an agent had no reply to go on with: the model's or its provider's doing, so an invalid day and no failure."""

SYNTHETIC = (
    "The city, its residents and the ground truth are synthetic: they show that the harness works, and say nothing of "
    "anyone."
)
SIMULATED = (
    "Movements are simulated: straight lines x 1.3 at 8 m/s driving and 1.34 m/s walking, without roads and traffic. "
    "This approximates the traffic simulator of the benchmark's authors. Requests have this run's sampling parameters, "
    "not those that the agent file asks for."
)


class Mode(Protocol):
    """How a day comes about. `source` tells whose prompt or agent it is; `files` are the bytes that define it."""

    name: str
    steps: int
    source: str
    path: Path | None
    files: Mapping[str, bytes]

    def identity(self) -> JSON: ...
    async def play(self, resident: Resident, ask: Ask) -> Day: ...


class PlanMode:
    """A plain model writes the whole day at once."""

    name = plan.MODE
    steps = 1

    def __init__(self, prompt: plan.PlanPrompt, city: City, *, json_object: bool, parse_retries: int) -> None:
        self.source = prompt.source
        self.path = prompt.path
        self.files = prompt.files
        self._prompt = prompt
        self._nearby = plan.Nearby(city)
        self._json_object = json_object
        self._parse_retries = parse_retries

    def identity(self) -> JSON:
        return {"structured": "json_object" if self._json_object else "none", "parse_retries": self._parse_retries}

    async def play(self, resident: Resident, ask: Ask) -> Day:
        return await plan.play(
            resident,
            self._nearby,
            ask,
            self._prompt,
            json_object=self._json_object,
            parse_retries=self._parse_retries,
        )


class AgentMode:
    """An agent file written for `asbench` lives through the day, step by step."""

    name = "agent"
    steps = AGENT_STEPS

    def __init__(self, agent: AgentFile, city: City, *, seed: int, json_object: bool, parse_retries: int) -> None:
        self.source = f"agent {agent.name}"
        self.path: Path | None = agent.path
        self.files: Mapping[str, bytes] = {
            KEPT + name: content for name, content in ((agent.name, agent.data), *agent.beside.items())
        }
        self.hear: Callable[[str], None] = lambda warning: None
        self._seed = seed
        self._json_object = json_object
        self._parse_retries = parse_retries
        self._stage = Stage(agent, city, seed=seed, warn=lambda warning: self.hear(warning))

    def identity(self) -> JSON:
        return {
            "simulator": SIMULATOR_VERSION,
            "agent_seed": self._seed,
            "structured": "json_object" if self._json_object else "none",
            "parse_retries": self._parse_retries,
        }

    async def play(self, resident: Resident, ask: Ask) -> Day:
        usage, odd = Usage(), Counter[str]()

        async def counted(request: Request) -> Completion:
            """The same request once more while the reply is empty or a refusal, as often as the run allows."""
            nonlocal usage
            request = request if self._json_object else replace(request, json_object=False)
            for retries_left in range(self._parse_retries, -1, -1):
                completion = await ask(request)
                usage = usage.plus(completion)
                final = completion.finish_reason in FINAL_REASONS
                if completion.text.strip() or final or not retries_left:
                    break
            odd.update(_oddities(completion))
            return completion

        try:
            rows = await self._stage.play(resident, counted)
        except AgentFailed as failure:
            if failure.kind not in NO_REPLY:
                raise
            return plan.stayed_home(resident, self.name, failure.kind, usage)
        if len(rows) != ROWS:
            raise AssertionError(f"a whole day has {ROWS} rows, got {len(rows)}")
        odd["unknown_intention"] = sum(row.intention not in NUMBERS for row in rows[: 2 * SLOTS : 2])
        places = tuple(row.aoi for row in rows[: 2 * SLOTS : 2])
        warnings = tuple(f"{what}: {count}" for what, count in sorted(odd.items()) if count)
        return Day(self.name, intention_sequence(rows), places, visited(rows), VALID, usage, warnings=warnings)


def _oddities(completion: Completion) -> Iterator[str]:
    """What a record says of a reply that an agent had to go on with."""
    if not completion.text.strip():
        yield "no_reply"
    elif completion.finish_reason == "length":
        yield "cut_off"


class UnplayedMode(Unplayed):
    """The mode of an earlier run whose days are only measured."""

    def __init__(self, settings: JSON) -> None:
        super().__init__(settings["prompt"])
        self.name: str = settings["mode"]
        self.steps = AgentMode.steps if self.name == AgentMode.name else PlanMode.steps
        self._identity = {name: settings[name] for name in IDENTITIES if name in settings}

    def identity(self) -> JSON:
        return self._identity

    async def play(self, resident: Resident, ask: Ask) -> Day:
        self.messages()


class DailyMobility:
    name = "dailymobility"
    key_field = "id"
    prompt_version = "1"
    parser_version = "2"
    subsets = SUBSETS

    def __init__(self, mode: Mode, city: City, truth: GroundTruth) -> None:
        self.task_version = f"1 {city.sha256} {mode.steps}"
        self.truth = truth.sha256
        self._mode = mode
        self.city = city
        self._truth = truth

    @property
    def source(self) -> Path | None:
        return self._mode.path

    @property
    def files(self) -> Mapping[str, bytes]:
        return self._mode.files

    @property
    def prompt(self) -> str:
        return self._mode.source

    def identity(self) -> JSON:
        return {
            "mode": self._mode.name,
            "prompt": self._mode.source,
            **self._mode.identity(),
            "map_sha256": self.city.sha256,
        }

    def on_warning(self, hear: Callable[[str], None]) -> None:
        if isinstance(self._mode, AgentMode):
            self._mode.hear = hear

    def check(self, line: bytes, where: Where, subset: str) -> tuple[str, int]:
        return task.check(line, where, self.city), self._mode.steps

    def load(self, line: bytes, subset: str) -> Resident:
        return task.load(line)

    def steps(self, resident: Resident) -> int:
        return self._mode.steps

    async def play(self, resident: Resident, ask: Ask) -> Day:
        return await self._mode.play(resident, ask)

    def measure(self, resident: Resident, day: Day) -> DayMetrics:
        return self._measured(day.visited, day.intentions)

    def record(self, resident: Resident, day: Day, metrics: DayMetrics) -> JSON:
        return {
            "user_id": resident.number,
            "mode": day.mode,
            "intentions": day.intentions,
            "places": day.places,
            "visited_aois": day.visited,
            **_columns(metrics),
            "invalid": None if day.outcome == VALID else day.outcome,
            "repairs": day.repairs,
            "warnings": day.warnings,
            "usage": day.usage.data,
        }

    def rescore(self, resident: Resident, data: JSON) -> JSON:
        with read_of(resident.key):
            _check_record(resident, data, self.city)
            return {**data, **_columns(self._measured(data["visited_aois"], data["intentions"]))}

    def remark(self, resident: Resident) -> str:
        return " ".join(
            [*([SYNTHETIC] if resident.synthetic else []), *([SIMULATED] if self._mode.name == AgentMode.name else [])]
        )

    def scorer(self, subset: str) -> MobilityScorer:
        return MobilityScorer(subset, self._truth, self.prompt_version)

    def _measured(self, places: tuple[int, ...] | list[int], intentions: tuple[int, ...] | list[int]) -> DayMetrics:
        centroids = [(aoi.x, aoi.y) for aoi in map(self.city.aois.__getitem__, places)]
        return DayMetrics(len(places), gyration_radius(centroids), proportions(intentions))


def _check_record(resident: Resident, data: JSON, city: City) -> None:
    """Raises `BadInput` for a saved day that no measure can be trusted with."""
    visited, places, intentions = data["visited_aois"], data["places"], data["intentions"]
    if unknown := [aoi for aoi in visited if aoi not in city.aois]:
        raise BadInput(f"user {resident.key}: the map has no AOI {shown(unknown[0])}, where the record says they were")
    if not visited or len(set(visited)) < len(visited):
        raise BadInput(f"user {resident.key}: field visited_aois: expected one AOI or more, each once")
    if len(places) != SLOTS or not {*places} <= {*visited, None}:
        raise BadInput(f"user {resident.key}: field places: expected {SLOTS} of the visited AOIs, or null")
    if len(intentions) != SLOTS or any(type(one) is not int or one not in INTENTIONS for one in intentions):
        raise BadInput(f"user {resident.key}: field intentions: expected {SLOTS} whole numbers from 1 to 7")


def _columns(metrics: DayMetrics) -> JSON:
    return {
        "daily_location_number": metrics.locations,
        "gyration_radius_m": metrics.radius,
        "intention_proportions": metrics.proportions,
    }


def files_needed(subset: str) -> tuple[str, ...]:
    return tuple(f"{FOLDER}/{name}" for name in FILES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("DailyMobility")
    group.add_argument("--agent", type=Path, metavar="FILE", help="an agent file written for asbench; its code is run")
    group.add_argument("--agent-seed", type=int, metavar="N", help="seed of the agents' random numbers (default: 0)")


def settings(args: argparse.Namespace, folder: Path) -> JSON:
    """The settings that a command's options make."""
    if args.agent is not None and args.prompt is not None:
        raise BadInput("--agent and --prompt exclude each other: an agent file writes its own prompts")
    if args.agent is None and args.agent_seed is not None:
        raise BadInput("--agent-seed has no effect without --agent")
    return {
        "source": args.agent or args.prompt,
        "mode": AgentMode.name if args.agent else PlanMode.name,
        "structured": args.structured,
        "parse_retries": config.PARSE_RETRIES if args.parse_retries is None else args.parse_retries,
        "agent_seed": args.agent_seed or 0,
        "folder": folder,
    }


def settings_again(identity: JSON, source: Path | None, folder: Path) -> JSON:
    """The settings of an earlier run, from what its manifest says and where its prompt or agent is now."""
    in_agent_mode = identity.get("mode") == AgentMode.name
    needed = {"mode": str, "prompt": str, **({"agent_seed": int} if in_agent_mode else {})}
    made = checked(identity, needed, {"structured": str, "parse_retries": int})
    return {**made, "source": source, "folder": folder}


def configure(settings: JSON) -> DailyMobility:
    """The benchmark with settings as the functions above make them."""
    folder = settings["folder"] / FOLDER
    city, truth = load_city(folder / "beijing.pb"), groundtruth.load(folder)
    parse_retries = settings.get("parse_retries", config.PARSE_RETRIES)
    json_object = settings.get("structured", "json_object") == "json_object"
    mode: Mode
    if not settings.get("play", True):
        mode = UnplayedMode(settings)
    elif settings["mode"] == AgentMode.name:
        if settings["source"] is None:
            raise BadInput("the run's manifest: field provenance.source: expected the path of the agent file")
        mode = AgentMode(
            load_agent(settings["source"], settings.get("digests")),
            city,
            seed=settings["agent_seed"],
            json_object=json_object,
            parse_retries=parse_retries,
        )
    else:
        mode = PlanMode(
            plan.PlanPrompt(settings["source"]),
            city,
            json_object=json_object,
            parse_retries=parse_retries,
        )
    return DailyMobility(mode, city, truth)
