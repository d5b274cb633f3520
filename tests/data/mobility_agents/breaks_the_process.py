"""Each resident does something else to the process. With PLAIN_FAILURES set, what would be refused raises instead."""

import asyncio
import ctypes
import faulthandler
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

from agentsociety_benchmark.benchmarks import DailyMobilityAgent

PLAIN = "PLAIN_FAILURES" in os.environ


def in_thread(what, *args):
    thread = threading.Thread(target=what, args=args)
    thread.start()
    thread.join()


def forks():
    if os.fork() == 0:
        time.sleep(1000)


def spins():
    while True:
        pass


def recurses(depth=0):
    sys.setrecursionlimit(3000)
    recurses(depth + 1)


def interrupts():
    raise KeyboardInterrupt


def process(method):
    return multiprocessing.get_context(method).Process(target=time.sleep, args=(1000,))


REFUSED = [
    lambda: os._exit(0),
    lambda: in_thread(os._exit, 0),
    forks,
    lambda: process("fork").start(),
    lambda: process("spawn").start(),
    lambda: subprocess.run(["sleep", "1000"]),
    lambda: os.system("sleep 1000"),
    lambda: os.closerange(3, 1000),
    lambda: [os.close(number) for number in range(51)],
    lambda: os.dup2(0, 1),
    lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    os.abort,
    lambda: os.kill(os.getpid(), signal.SIGKILL),
    lambda: faulthandler._sigsegv(),
    lambda: os.execv("/bin/true", ["true"]),
]
RAISE = [sys.exit, interrupts, recurses, lambda: asyncio.run(None)]
ALLOWED = [
    lambda: sys.stdout.close(),
    lambda: sys.stderr.close(),
    gc.disable,
    lambda: os.chdir("/"),
    lambda: os.environ.clear(),
    lambda: os.umask(0o777),
    lambda: sys.setrecursionlimit(500),
    lambda: threading.Thread(target=time.sleep, args=(1000,)).start(),
    lambda: threading.Thread(target=spins).start(),
    lambda: asyncio.get_running_loop().run_in_executor(None, time.sleep, 1000),
    lambda: os.kill(os.getpid(), 0),
    lambda: os.close(os.pipe()[0]),
]
PASSES = {
    "exit": lambda: ctypes.CDLL(None)._exit(0),
    "signal": lambda: ctypes.string_at(0),
    "fork": lambda: ctypes.CDLL(None).fork() or time.sleep(1000),
}
DEEDS = [*REFUSED, *RAISE, *ALLOWED]


class Breaks(DailyMobilityAgent):
    async def forward(self):
        await self.log_intention("work")
        if self.environment.get_tick() != 901:
            return
        number = int(self.id)
        if deed := PASSES.get(os.environ.get("PASSES")):
            if number == 1:
                deed()
        elif PLAIN and number <= len(REFUSED):
            raise ValueError
        elif number <= len(DEEDS):
            DEEDS[number - 1]()
