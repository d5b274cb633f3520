"""Run other people's code in the event loop, a slice at a time, with its own random states and a
time limit.

A slice is the part of an agent's coroutine between two moments at which it waits. The states of
`random` and `numpy.random` are exchanged before and after each, and an alarm is set, so that

- a resident's draws depend on nobody else;
- a slice of more than `notice` seconds is noticed, with the line that runs then;
- a slice of more than `limit` seconds is broken off, by an exception that the alarm's handler
  raises inside it. That works in the main thread, and not inside of a single call of C code;
  elsewhere such a slice is only noticed. A handler or timer of somebody else's is put back after
  each slice.

A bare `except:` that swallows the exception gains nothing: as the exception is dropped, the handler
is called once more, at the next moment at which signals are looked at, which is outside of that
`except:`. (Only code that keeps each exception it catches, around a call that never returns, can
hold out.) Nor can a slice be broken off that sets the alarm itself (`signal.setitimer`,
`signal.alarm`, a handler for SIGALRM): the process has one alarm, and what a file imports is
Python's own `signal`. Such a slice is noticed once it has ended.
"""

from __future__ import annotations

import hashlib
import random
import signal
import sys
import threading
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from opcode import opmap
from signal import ITIMER_REAL, SIGALRM, setitimer
from time import perf_counter
from types import CodeType, FrameType
from typing import Any
from weakref import ref

import numpy as np
from numpy.random import mtrand

JUMPS_FIRST = sys.version_info[:2] == (3, 12)
"""Python 3.12 looks at signals after a jump backward, and takes what a handler raises there for an
exception of the instruction before the target: a `try` that has been left could catch it, for
ever."""
AGAIN_SECONDS = 0.02
"""Between two attempts to break off a slice that has swallowed one."""

Place = tuple[str, int]
"""Name of a file, and a line of it."""


@dataclass(frozen=True, slots=True)
class SliceLimits:
    """Seconds that an agent may hold up the event loop before it is noticed, and before it is
    broken off.

    `stall` is how long it may wait for something else than a reply: between one and two such times
    it is given up.
    """

    notice: float = 0.25
    limit: float = 5.0
    stall: float = 600.0


class Dice:
    """States of `random` and `numpy.random` of one resident, made of seeds."""

    def __init__(self, *seeds: object) -> None:
        self._seeds = seeds
        self._parts = 0
        # Not `hash`, which differs from process to process: a resumed run must draw the same.
        seed = int.from_bytes(hashlib.sha256(repr(seeds).encode()).digest(), "big")
        self._python = random.Random(seed).getstate()
        self._numpy: np.random.BitGenerator = np.random.MT19937(seed)

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Make these the states of the process, and afterwards put the process's own back."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        python, numpy = random.getstate(), mtrand.get_bit_generator()
        random.setstate(self._python)
        mtrand.set_bit_generator(self._numpy)
        self._python, self._numpy = python, numpy

    def part(self) -> Dice:
        """Return new states for a task that the owner of these starts; they depend on how many it
        started before."""
        self._parts += 1
        return Dice(*self._seeds, self._parts)


class Cut(BaseException):
    """Breaks off a slice. No `Exception`, so that agents that catch those do not catch it."""


class Guard:
    """Times slices, and breaks them off. One slice runs at a time; `inside` is true while it does.

    After a slice, `seconds` is its length, `place` its line after `notice` seconds (None where no
    alarm struck), and `broken` whether it was broken off for its length.
    """

    def __init__(self, limits: SliceLimits, place_of: Callable[[FrameType], Place | None]) -> None:
        """`place_of` finds the innermost place of an agent's file from a frame outwards."""
        self._first = min(limits.notice, limits.limit)
        # A timer of 0 seconds is one that is switched off.
        self._rest = max(limits.limit - self._first, AGAIN_SECONDS)
        self._place_of = place_of
        self._armed = False
        self._strikes = 0
        self._deferred = False
        self._watched: ref[Cut] | None = None
        self.inside = False
        self.seconds = 0.0
        self.place: Place | None = None
        self.cut = self._renewed()

    def _renewed(self) -> type[Cut]:
        """Return the exception that, dropped before its slice has ended, calls the handler once
        more.

        The callback must not be a function in Python: signals would be looked at in there.
        """
        again: Callable[[ref[Cut]], Any] = partial(next, map(interrupt_main, repeat(SIGALRM)))
        guard = self

        class Renewed(Cut):
            def __init__(self) -> None:
                guard._watched = ref(self, again) if guard._armed else None

        return Renewed

    @property
    def broken(self) -> bool:
        return self._strikes > 1

    def run(self, step: Callable[[Any], Any], argument: object) -> Any:
        """Run one slice, `step(argument)`; return its result, or raise its exception."""
        self._strikes, self.place, self._deferred = 0, None, False
        self._armed = armed = _can_strike()
        trace = sys.gettrace()
        began = perf_counter()
        if armed:
            handler = signal.signal(SIGALRM, self._strike)
            delay, interval = setitimer(ITIMER_REAL, self._first)

        self.inside = True
        try:
            return step(argument)
        finally:
            self.inside = self._armed = False
            self._watched = None
            self.seconds = perf_counter() - began
            if self._deferred:
                sys.settrace(trace)

            if armed:
                setitimer(ITIMER_REAL, 0)
                signal.signal(SIGALRM, handler)
                if delay:
                    # One that is due by now must still go off, which it would not with 0 seconds.
                    setitimer(ITIMER_REAL, max(delay - self.seconds, 1e-6), interval)

    def _strike(self, number: int, frame: FrameType | None) -> None:
        """Handle the alarm. The first strike only notes the line, and sets the alarm for the
        second.

        So a process that was stopped for a while (a job scheduler, Ctrl-Z) breaks off nobody.
        """
        if not self.inside or frame is None or frame.f_code is _RUN:
            return

        if self._watched is None:
            self._strikes += 1
            if self._strikes == 1:
                self.place = self._place_of(frame)
                setitimer(ITIMER_REAL, self._rest, AGAIN_SECONDS)
                return

        if JUMPS_FIRST and frame.f_code.co_code[frame.f_lasti] == _JUMP_BACKWARD:
            self._deferred = True
            frame.f_trace = self._trace
            sys.settrace(self._trace)
            return

        raise self.cut

    def _trace(self, frame: FrameType, event: str, argument: object) -> None:
        """Break off the frame of a strike at its next line or end. Python drops a trace function
        that raises."""
        if event != "call":
            raise self.cut


_JUMP_BACKWARD = opmap["JUMP_BACKWARD"]
_RUN: CodeType = Guard.run.__code__


def _can_strike() -> bool:
    """Handlers are called in the main thread alone; one that was not set from Python could not be
    put back."""
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(SIGALRM) is not None
    )
