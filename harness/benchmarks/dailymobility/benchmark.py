"""DailyMobility as a benchmark: how a resident is played, measured and recorded (docs/design.md,
section 9)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from harness.benchmark import (
    VALID,
    About,
    Benchmark,
    Configuration,
    Imports,
    Metric,
    Records,
    Task,
    TaskFiles,
)
from harness.benchmarks.agents.city import City, load_city
from harness.benchmarks.agents.loader import AgentFile, load_agent
from harness.benchmarks.agents.player import AgentPlayer
from harness.benchmarks.agents.resident import Resident, resident_of
from harness.benchmarks.agents.runner import Runner, World
from harness.benchmarks.dailymobility import groundtruth, summary, synth
from harness.benchmarks.dailymobility.agent import DailyMobilityAgent
from harness.benchmarks.dailymobility.cards import ResidentCards
from harness.benchmarks.dailymobility.day import (
    INTENTIONS,
    NUMBERS,
    ROW_SECONDS,
    ROWS,
    SLOTS,
    Day,
    gyration_radius,
    intention_sequence,
    proportions,
    visited,
)
from harness.benchmarks.dailymobility.plan import PlanMode, prompt_of, stayed_home
from harness.benchmarks.dailymobility.protocols import METRICS
from harness.benchmarks.dailymobility.summary import SCORE
from harness.benchmarks.hash_seed import COPY_PREFIX
from harness.benchmarks.records import read_of
from harness.benchmarks.settings import checked
from harness.chat import Asking, Chat
from harness.errors import BadInput, InvalidReply, in_brief
from harness.model import JSON

FOLDER, PROFILES = "dailymobility", "profiles.json"
"""Below the tasks folder: the data as published."""
LAYOUTS = ((FOLDER,), ("datasets", FOLDER), ())
"""Where the data may be in a tasks folder, in any case of letters: ours, that of asbench, the
folder itself."""

SIMULATOR_VERSION = "1"
AGENT_PARAMETERS = "agent_parameters"
SENT = "sent"
"""In an identity: requests have the parameters that the agent asks for. Without it (runs of version
0.1) none has."""

AGENT_MEMORY_SEARCH = "agent_memory_search"
"""In an identity: agents' searches of their memories find something. Without it they find nothing,
as upstream's."""

IDENTITIES = (
    "structured",
    "parse_retries",
    "simulator",
    "agent_seed",
    AGENT_PARAMETERS,
    AGENT_MEMORY_SEARCH,
)
"""What the modes say of themselves in a run's identity."""

SYNTHETIC = (
    "The city, its residents and the ground truth are synthetic: they show that the harness works,"
    " and say nothing of anyone."
)
SIMULATED = (
    "Movements are simulated: straight lines x 1.3 at 8 m/s driving and 1.34 m/s walking, without"
    " roads and traffic. This approximates the traffic simulator of the benchmark's authors."
)
BASELINES_AND_AGENTS = (
    "warning: baselines answer with a whole day, whatever is asked: an agent that asks other"
    " questions needs a model (examples/commuting_agent.py is one that they can answer)"
)
RUNS_PARAMETERS = (
    "Requests have this run's sampling parameters, not those that the agent file asks for."
)


class AgentMode:
    """An agent file written for `asbench` lives through the day, step by step."""

    name = "agent"
    steps = ROWS
    """Requests that a day is expected to take, for the schedule: one a step. It may take fewer or
    more."""

    def __init__(
        self,
        agent: AgentFile,
        city: City,
        settings: DailyMobility.Settings,
        asking: Asking,
        warn: Callable[[str], None],
        log: Callable[[str], None],
    ) -> None:
        files = {
            COPY_PREFIX + name: content
            for name, content in ((agent.name, agent.data), *agent.siblings.items())
        }
        seed, finds = settings.agent_seed, settings.agent_memory_search
        identity = {"simulator": SIMULATOR_VERSION, "agent_seed": seed}
        identity |= {AGENT_MEMORY_SEARCH: True} if finds else {}
        identity |= {AGENT_PARAMETERS: SENT} if settings.sends_parameters else {}
        identity |= asking.identity
        self.asks_with = Configuration(
            f"agent {agent.name}", agent.path, files, identity, None, BASELINES_AND_AGENTS
        )
        world = World(city, ROWS, ROW_SECONDS)
        runner = Runner(agent, world, seed=seed, finds_memories=finds, warn=warn, log=log)
        self._player = AgentPlayer(runner, asking, sends_parameters=settings.sends_parameters)

    async def play(self, resident: Resident, chat: Chat) -> Day:
        try:
            rows, odd = await self._player.play(resident, chat)
        except InvalidReply as invalid:
            return stayed_home(resident, self.name, invalid.kind)
        odd["unknown_intention"] = sum(
            row.intention not in NUMBERS for row in rows[: 2 * SLOTS : 2]
        )
        places = tuple(row.aoi for row in rows[: 2 * SLOTS : 2])
        warnings = tuple(f"{what}: {count}" for what, count in sorted(odd.items()) if count)
        return Day(
            self.name, intention_sequence(rows), places, visited(rows), VALID, warnings=warnings
        )


def _divergence(metric: str) -> str:
    return (
        f"Jensen-Shannon divergence of {metric.replace('_', ' ')} from real residents, protocol"
        " aligned"
    )


@dataclass(frozen=True)
class Days(Records):
    """A record has the day: intentions and places. `city` is None where nothing is prepared to
    measure one."""

    outcome_field = "invalid"
    has_answer = False
    city: City | None = None

    def record(
        self, task: Task, answer: Day, metrics: JSON, outcome: str, repairs: Sequence[str]
    ) -> JSON:
        return {
            "user_id": task.given.number,
            "mode": answer.mode,
            "intentions": answer.intentions,
            "places": answer.places,
            "visited_aois": answer.visited,
            **metrics,
            "invalid": None if answer.outcome == VALID else answer.outcome,
            "repairs": answer.repairs,
            "warnings": answer.warnings,
        }

    def rescore(self, task: Task, data: JSON) -> JSON:
        assert self.city is not None
        with read_of(task.key):
            _check_record(task.given, data, self.city)
            return {**data, **_measured(self.city, data["visited_aois"], data["intentions"])}

    def rows(self, record: JSON) -> Iterable[JSON]:
        """Return a row for each half hour of the day, from 0."""
        about: JSON = {
            name: record[name] for name in ("user_id", "repeat", "mode") if name in record
        }
        about["outcome"] = record["invalid"] or VALID
        for slot, (place, intention) in enumerate(
            zip(record["places"], record["intentions"], strict=True)
        ):
            yield {**about, "slot": slot, "place": place, "intention": intention}

    def outcomes(self, record: JSON) -> Iterable[str]:
        return (record["invalid"] or VALID,)


def _measured(city: City, places: Sequence[int], intentions: Sequence[int]) -> JSON:
    return {
        "daily_location_number": len(places),
        "gyration_radius_m": gyration_radius(
            [(aoi.x, aoi.y) for aoi in map(city.aois.__getitem__, places)]
        ),
        "intention_proportions": proportions(intentions),
    }


@dataclass(frozen=True, kw_only=True)
class ProfileFiles(TaskFiles):
    """The data in one of `LAYOUTS`."""

    key_field: str = "id"
    data_files: Sequence[str] = (
        f"{FOLDER}/beijing.pb",
        *(f"{FOLDER}/{groundtruth.FOLDER}/{name}.npy" for name in groundtruth.FILES),
    )
    data_set: str = "tsinghua-fib-lab/daily-mobility-generation-benchmark"

    def file_in(self, folder: Path, name: str) -> Path:
        found = (
            data
            for names in LAYOUTS
            for data in _below(folder, *names)
            if os.path.isfile(data / PROFILES)
        )
        return next(found, folder / FOLDER) / Path(name).relative_to(FOLDER)


def _settings(identity: JSON, files: Mapping[str, Path]) -> DailyMobility.Settings:
    if checked(identity, "mode", str) != AgentMode.name or "agent" not in files:
        return DailyMobility.Settings(prompt=files.get("prompt"))
    kind = (
        DailyMobility.Settings
        if identity.get(AGENT_PARAMETERS) == SENT
        else DailyMobility.EarlierSettings
    )
    finds, seed = identity.get(AGENT_MEMORY_SEARCH) is True, checked(identity, "agent_seed", int)
    return kind(agent=files["agent"], agent_seed=seed, agent_memory_search=finds)


class DailyMobility(Benchmark):
    name = "dailymobility"
    version = "1"
    subsets: ClassVar = {"beijing": f"{FOLDER}/{PROFILES}"}
    metrics = (
        Metric(SCORE, definition="1 minus the mean of the four divergences, protocol aligned"),
        *(
            Metric(f"JSD_{metric}", better="lower", definition=_divergence(metric))
            for metric in METRICS
        ),
    )
    about = About(
        title="DailyMobility",
        user="resident",
        invalid_as="Invalid days count as stayed home with the intention other",
        synthetic=SYNTHETIC,
        language="zh",
        floor="commuter",
        parser_version="2",
    )
    scoring = summary.DayScoring()
    task_files = ProfileFiles()
    records = Days()
    cards = ResidentCards()
    imports = Imports(
        upgraded=summary.upgraded,
        settings=_settings,
        runs_code=lambda identity: bool(identity.get("mode") == AgentMode.name),
        same_note=True,
    )

    @dataclass(frozen=True)
    class Settings:
        prompt: Path | None = field(
            default=None, metadata={"help": "a prompt template for plan mode"}
        )
        agent: Path | None = field(
            default=None, metadata={"help": "an agent file written for asbench; its code is run"}
        )
        agent_seed: int = field(default=0, metadata={"help": "seed of the agents' random numbers"})
        agent_memory_search: bool = field(
            default=False,
            metadata={
                "help": (
                    "let agents' searches of their stream of memories find something, unlike"
                    " upstream's"
                )
            },
        )
        sends_parameters: ClassVar[bool] = True

        def __post_init__(self) -> None:
            if self.agent is not None and self.prompt is not None:
                raise BadInput(
                    "--agent and --prompt exclude each other: an agent file writes its own prompts"
                )
            if self.agent is None and self.agent_seed:
                raise BadInput("--agent-seed has no effect without --agent")
            if self.agent is None and self.agent_memory_search:
                raise BadInput("--agent-memory-search has no effect without --agent")

    class EarlierSettings(Settings):
        """Settings of a run from before requests had the parameters that the agent asks for."""

        sends_parameters = False

    def prepare(self) -> Configuration:
        folder = self.task_files.file_in(self.folder, FOLDER)
        self.city = load_city(folder / "beijing.pb")
        self.records, self.cards = Days(self.city), ResidentCards(self.city)
        truth = groundtruth.load(folder)
        self.scoring = summary.DayScoring(truth)
        if self.recorded is None:
            self._mode = self._made_mode()
            mode, own = self._mode.name, self._mode.asks_with
        else:  # days are only measured
            earlier = {name: self.recorded[name] for name in IDENTITIES if name in self.recorded}
            mode = checked(self.recorded, "mode", str)
            own = Configuration(checked(self.recorded, "prompt", str), None, {}, earlier)
        self._steps = AgentMode.steps if mode == AgentMode.name else PlanMode.steps
        version = f"1 {self.city.sha256} {self._steps}"
        self.task_files = ProfileFiles(version=version, truth_sha256=truth.sha256)
        identity = {
            "mode": mode,
            "prompt": own.source,
            **own.identity,
            "map_sha256": self.city.sha256,
        }
        return replace(own, identity=identity, remark=_remark(mode, identity))

    def _made_mode(self) -> PlanMode | AgentMode:
        made = self.settings
        if made.agent is not None:
            if self.asking.needs_schema:
                raise BadInput(
                    "--structured json_schema has no effect with --agent: its file asks in its own"
                    " form"
                )
            agent = load_agent(made.agent, DailyMobilityAgent, self.digests)
            return AgentMode(agent, self.city, made, self.asking, self.warn, self.logged.append)
        return PlanMode(prompt_of(made.prompt), self.city, self.asking)

    def parse(self, line: JSON, subset: str) -> Task:
        return task_of(line, self.city, self._steps)

    async def play(self, given: Resident, chat: Chat) -> Day:
        return await self._mode.play(given, chat)

    def measure(self, task: Task, answer: Day) -> Any:
        """Return what the record has of a day: the figures are made of records (`scores.py`)."""
        return _measured(self.city, answer.visited, answer.intentions)

    @classmethod
    def synthesise(cls, folder: Path, users: int, seed: int) -> Mapping[str, Iterable[bytes]]:
        return {
            f"{FOLDER}/{name}": (content,) for name, content in synth.files(users, seed).items()
        }


def _remark(mode: str, identity: JSON) -> str:
    if mode != AgentMode.name:
        return ""
    return SIMULATED if AGENT_PARAMETERS in identity else f"{SIMULATED} {RUNS_PARAMETERS}"


def task_of(entry: JSON, city: City, steps: int) -> Task:
    """Return the task of an entry; `given` is a `Resident`. Raise `FieldError`."""
    resident = resident_of(entry, city)
    return Task(resident.key, given=resident, steps=steps)


def _check_record(resident: Resident, data: JSON, city: City) -> None:
    """Raise `BadInput` for a saved day that no measure can be trusted with."""
    visited, places, intentions = data["visited_aois"], data["places"], data["intentions"]
    if unknown := [aoi for aoi in visited if aoi not in city.aois]:
        raise BadInput(
            f"user {resident.key}: the map has no AOI {in_brief(unknown[0])}, where the record says"
            " they were"
        )
    if not visited or len(set(visited)) < len(visited):
        raise BadInput(
            f"user {resident.key}: field visited_aois: expected one AOI or more, each once"
        )
    if len(places) != SLOTS or not {*places} <= {*visited, None}:
        raise BadInput(
            f"user {resident.key}: field places: expected {SLOTS} of the visited AOIs, or null"
        )
    if len(intentions) != SLOTS or any(
        type(one) is not int or one not in INTENTIONS for one in intentions
    ):
        raise BadInput(
            f"user {resident.key}: field intentions: expected {SLOTS} whole numbers from 1 to 7"
        )


def _below(folder: Path, *names: str) -> list[Path]:
    """Return the folders at a path of names below a folder, in any case of letters, that spelling
    itself first."""
    found = [folder]
    for name in names:
        listed = [path for above in found for path in _entries(above) if path.name.lower() == name]
        found = sorted(listed, key=lambda path: (path.name != name, path.name))
    return found


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError, ValueError):  # a path of a manifest may be no path at all
        return list(folder.iterdir())
    return []
