"""Hurricane: the trips of residents on the days before, of and after a hurricane.

Data and score are those of HurricaneMobility in asbench (AgentSociety, Tsinghua FIB lab): 60 % for
the change of trips from the first day, 40 % for the hours of departure. Agent files written for it
run unchanged (--agent); without one the model says for each day where a resident is each hour."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy

from harness import About, Benchmark, InvalidReply, Metric, Scoring, Task, TaskFiles
from harness.benchmarks.agents.city import load_city
from harness.benchmarks.agents.classes import MobilityAgent
from harness.benchmarks.agents.player import AgentPlayer
from harness.benchmarks.agents.resident import resident_of
from harness.benchmarks.agents.runner import World
from harness.benchmarks.dailymobility import synth

DATA_SET = "tsinghua-fib-lab/hurricane-mobility-generation-benchmark"
MAP, TRUTH = "columbia.pb", "groundtruth/hurricane_groundtruth.json"
WEATHER = {
    "before": "The weather is normal",
    "during": "Hurricane Dorian has made landfall in other cities, travel is slightly affected,"
    " and winds can be felt.",
    "after": "Hurricane Dorian has passed, the weather is normal and does not affect travel.",
}
PROMPT = """You live in Columbia, South Carolina. Your profile: {profile}
The weather today: {weather} Your hours of yesterday: {hours}
Where are you in each hour of today? Answer as JSON: {{"hours": [24 times home, work or out]}}"""
HALF_HOURS, SECONDS = 48, 1800


class HurricaneMobilityAgent(MobilityAgent):  # what agent files import and derive from
    async def get_current_weather(self):
        return self.environment.sense("weather")


def commuter(messages, seed):
    """Work from 8 to 16, or stay at home: in the storm two of five do."""
    stays = "landfall" in messages[-1]["content"] and Random(f"{seed} {messages}").random() < 0.4
    hours = ["home" if stays or hour not in range(8, 17) else "work" for hour in range(24)]
    return json.dumps({"hours": hours})


def trips_of(places):
    """Count a day's trips, and departures by hour, as asbench does from the place each half hour
    (None on the way). A trip that is over within a half hour so has no hour of departure."""
    trips, hours = 0, [0] * 24
    last = before = None
    for step, place in enumerate(places):
        if place is not None:
            trips += last not in (None, place)
            last = place
        elif before is not None:
            hours[step // 2] += 1
        before = place
    return [trips, *hours]


def unit(vectors):
    return vectors / (numpy.linalg.norm(vectors, axis=-1, keepdims=True) + 1e-8)


class Similarity(Scoring):
    def __init__(self, changes, hours):  # the real changes in percent, the real trips (3 x 24)
        self.changes = numpy.array(changes)
        self.hours = numpy.array(hours)

    def statistics(self, records):
        return numpy.array([record["metrics"]["days"] for record in records]).reshape(-1, 75)

    def figures(self, totals):
        days = totals.reshape(-1, 3, 25)
        trips, hours = days[:, :, 0], days[:, :, 1:]
        first = numpy.maximum(trips[:, :1], 1)
        changes = 100 * (trips[:, 1:] - trips[:, :1]) / first
        errors = abs(changes - self.changes) / (abs(self.changes) + 1e-8)
        change = numpy.maximum(0, 1 - errors.mean(axis=1))
        cosine = (unit(hours) * unit(self.hours)).sum(axis=2).mean(axis=1)
        return numpy.column_stack([0.6 * change + 0.4 * cosine, change, cosine])


class Hurricane(Benchmark):
    name = "hurricane"
    subsets = {"columbia": "profiles.json"}
    metrics = (Metric("Score"), Metric("Change"), Metric("Distribution"))
    about = About(title="Hurricane", user="resident")
    task_files = TaskFiles(key_field="id", data_files=(MAP, TRUTH), data_set=DATA_SET)
    baselines = {"commuter": commuter}

    @dataclass(frozen=True)
    class Settings:
        agent: Path | None = field(default=None, metadata={"help": "an agent file for asbench"})

    def prepare(self):
        self.city = load_city(self.folder / MAP)
        truth = json.loads((self.folder / TRUTH).read_bytes())
        changes = [truth["relative_changes"][f"{day}_vs_before"] for day in ("during", "after")]
        self.scoring = Similarity(changes, [truth["hourly_trips"][day] for day in WEATHER])
        self.player = None
        if self.settings.agent and self.recorded is None:  # else nobody is played
            senses = [{"weather": weather} for weather in WEATHER.values()]
            world = World(self.city, 3 * HALF_HOURS, SECONDS, senses)
            self.player = AgentPlayer.of(self, self.settings.agent, HurricaneMobilityAgent, world)

    def parse(self, line, subset):
        resident = resident_of(line, self.city)
        return Task(resident.key, given=resident, steps=3, synthetic=line.get("synthetic", False))

    async def play(self, given, chat):
        if self.player:
            rows, _ = await self.player.play(given, chat)
            return [row.aoi for row in rows]
        places, hours = [], ["home"]
        for weather in WEATHER.values():
            prompt = PROMPT.format(profile=given.profile, weather=weather, hours=hours)
            here = hours[-1]
            hours = await chat.json(prompt, read=hours_of)
            for place in hours:  # who moves is on the way for the first half hour
                places += [place if place == here else None, place]
                here = place
        return places

    def measure(self, task, answer):
        places = answer or ["home"] * 3 * HALF_HOURS
        starts = range(0, len(places), HALF_HOURS)
        return {"days": [trips_of(places[start : start + HALF_HOURS]) for start in starts]}

    @classmethod
    def synthesise(cls, folder, users, seed):
        made = synth.files(users, seed)
        hours = [users * (hour in (8, 17)) for hour in range(24)]
        changes = {"during_vs_before": -40.0, "after_vs_before": -10.0}
        truth = {"relative_changes": changes, "hourly_trips": dict.fromkeys(WEATHER, hours)}
        return {
            "profiles.json": [made["profiles.json"]],
            MAP: [made["beijing.pb"]],
            TRUTH: [json.dumps(truth).encode()],
        }


def hours_of(reply):
    if len(reply["hours"]) != 24 or not set(reply["hours"]) <= {"home", "work", "out"}:
        raise InvalidReply("no_hours", "hours are not 24 times home, work or out")
    return reply["hours"]
