"""Instructions of the whole serving process per event, as valgrind counts them: what one shard and two do for the same work.

Each row is run twice, with few requests and with many; the difference is what an event costs, without start and stop. valgrind runs one
thread at a time and knows no io_uring, so times mean nothing and the driver is epoll.
"""
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

from . import machine, targets
from .process import Process, free_ports

FEW, MANY, RUN_S = 100, 500, 300
VALGRIND = ["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]


def measure(scenario, rows, found, args):
    """One round; the counts do not spread."""
    valgrind = shutil.which("valgrind")
    if not valgrind:
        print("# valgrind is missing: no instructions", file=sys.stderr)
        return {}
    rounds = {}
    for row in rows:
        if row.driver != "epoll" or args.over.is_set():
            continue
        few, many = (counted(scenario, row, requests, found, args, valgrind) for requests in (FEW, MANY))
        each = (many - few) / (MANY - FEW) / scenario.tokens
        rounds[row.label] = [{"fault": None, "instructions": each, "requests": MANY}]
        print(f"# {scenario.name} {row.label}: {each:,.0f} instructions an event", file=sys.stderr, flush=True)
    return rounds


def counted(scenario, row, requests, found, args, valgrind):
    """Instructions from start to end of a process that served so many requests."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="narwhal-perf-"))
        engines, port = free_ports(2), free_ports(1)[0]
        listens = [word for at in engines for word in ("--listen", f"127.0.0.1:{at}")]
        engine = Process("engine", [args.engine, *listens], {machine.LOAD_CORE}, folder, engines[-1])
        stack.callback(engine.stop)
        engine.until_up()
        argv = targets.narwhal(row, port, 0, engines, scenario, found, folder, args)
        router = Process("router", [valgrind, *VALGRIND, *argv], set(range(row.shards)), folder, port)
        stack.callback(router.stop)
        router.until_up()
        client = [args.load, "--target", f"127.0.0.1:{port}", "--connections", str(scenario.connections), "--tokens", str(scenario.tokens),
                  "--requests", str(requests)]
        done = subprocess.run(client, capture_output=True, text=True, timeout=RUN_S, check=False)
        if done.returncode:
            raise RuntimeError(f"load: {done.stdout}{done.stderr}")
        router.stop(RUN_S)
        refs = re.search(r"I\s+refs:\s+([\d,]+)", router.said())
        if not refs:
            raise RuntimeError(f"valgrind did not count: {router.said()}")
        return int(refs[1].replace(",", ""))
