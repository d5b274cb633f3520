"""What the live display costs: CPU of a frame, as a terminal gets it (`python -m bench.dashboard`).

A frame is a new snapshot, laid out and written to a file that takes no time. Four a second are
drawn in a run.
"""

from __future__ import annotations

import io
import time
from dataclasses import replace

from harness.model import Snapshot, SubsetProgress, Warned
from harness.ui.console import SharedConsole
from harness.ui.live import LiveDisplay

FRAMES, A_SECOND = 1000, 4
SUBSETS = ("weibo", "xiaohongshu", "toutiao", "zhihu", "douban")


def snapshot(number: int, run: int = 0) -> Snapshot:
    """Return a run of five subsets in full flight; each number is another moment."""
    subsets = tuple(
        SubsetProgress(
            name,
            1400,
            number,
            3,
            11_000,
            8 * number,
            {"Recall": 0.4, "F1^NS": 1e-4 * number},
            number,
        )
        for name in SUBSETS
    )
    return Snapshot(
        name=f"Qwen3-8B-{run}",
        model="Qwen/Qwen3-8B",
        seconds=0.25 * number,
        subsets=subsets,
        requested=None,
        limit=256,
        in_flight=number % 256,
        held_by="rate",
        outage=0.0,
        lag=0.002,
        slowest_write=0.0004,
        waiting=number % 40,
        backing_off=3,
        requests=40 * number,
        replayed=0,
        retries=number // 10,
        prompt_tokens=9000 * number,
        completion_tokens=800 * number,
        rate=31.4,
        eta=1500.0 - number,
        token_rates=(90_000.0, 8_000.0),
        latency=(1.2, 3.4),
        faults=(
            ("http_429", number // 20),
            ("timeout", number // 30),
            ("http_503", 3),
            ("connection", 2),
        ),
        failures=(("persistent_error", 15),),
        projected_tokens=(30_000_000, 3_000_000),
        warnings=tuple(
            [Warned("http_503: 服务器繁忙，请稍后再试", age) for age in (0.0, 3.0, 9.0)]
        ),
    )


def seconds_a_frame(runs: int, width: int, height: int) -> float:
    """CPU seconds of one, the mean of `FRAMES`."""
    frames = [
        tuple([replace(snapshot(number), name=f"Qwen3-8B-{run}") for run in range(runs)])
        for number in range(FRAMES)
    ]
    console = SharedConsole(
        file=io.StringIO(), force_terminal=True, width=width, height=height, color_system="256"
    )
    with LiveDisplay(console) as observe:
        start = time.process_time()
        for frame in frames:
            observe(frame)
        return (time.process_time() - start) / FRAMES


def main() -> None:
    for runs, width, height in (
        (1, 80, 24),
        (1, 160, 50),
        (3, 160, 50),
        (20, 160, 50),
        (20, 80, 24),
    ):
        cost = seconds_a_frame(runs, width, height)
        print(
            f"{runs:>2} runs of 5 subsets at {width}x{height}: {1e3 * cost:.2f} ms,"
            f" {100 * A_SECOND * cost:.2f} %"
        )


if __name__ == "__main__":
    main()
