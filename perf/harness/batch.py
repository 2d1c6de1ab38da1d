"""One batch: the load client against one row, and what came of it. Rounds of batches, and who comes when in them."""
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time

from . import machine, targets
from .process import Process, free_ports

TRIES, RUN_S = 3, 120


def measure(scenario, rows, found, args):
    """All rounds of a scenario: the batches of each row, by its label, in order."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="narwhal-perf-"))
        os.chmod(folder, 0o755)
        engines = free_ports(2)
        argv = [args.engine, *[word for port in engines for word in ("--listen", f"127.0.0.1:{port}")], *scenario.engine]
        engine = Process("engine", argv, {machine.LOAD_CORE}, folder, engines[-1])
        stack.callback(engine.stop)
        engine.until_up()
        running = {}
        if not scenario.fresh:
            for row in list(rows):
                if row.target != "direct" and row.process not in running:
                    try:
                        running[row.process] = targets.start(row, engines, scenario, found, folder, args)
                    except RuntimeError as why:
                        print(f"# {scenario.name} {row.label}: {why}", file=sys.stderr)
                        rows = [other for other in rows if other.process != row.process]
                        continue
                    stack.callback(running[row.process].stop)
        rounds = {row.label: [] for row in rows}
        for number in range(args.rounds):
            # Another order each time, so that nobody always follows the same one.
            for row in args.chance.sample(rows, len(rows)):
                if args.over.is_set() or time.monotonic() > args.end:
                    args.cut = True
                    return {label: batches[:number] for label, batches in rounds.items()}
                with contextlib.ExitStack() as own:
                    process = running.get(row.process)
                    if process is None and row.target != "direct":
                        process = targets.start(row, engines, scenario, found, folder, args)
                        own.callback(process.stop)
                    batch = undisturbed(scenario, row, process, engine, engines, args)
                rounds[row.label].append(batch)
                tell(scenario, number, row, batch)
        return rounds


def undisturbed(scenario, row, process, engine, engines, args):
    """A batch that nothing else on the machine disturbed, or the least disturbed of a few."""
    best, tried = None, []
    for _ in range(1 if scenario.fresh else TRIES):
        machine.await_quiet(args)
        others = machine.Others([engine.pid] + ([process.pid] if process else []))
        batch = load(scenario, row, process, engine, engines, args)
        batch["others"] = others.share()
        tried.append(batch["others"])
        # All tries are told, the one that counts among them.
        batch["tries"] = tried
        if batch["fault"]:
            return batch
        if best is None or batch["others"] < best["others"]:
            best = batch
        if best["others"] <= args.quiet or args.over.is_set():
            break
    return best


def load(scenario, row, process, engine, engines, args):
    """Runs the load client once."""
    whole = scenario.whole if row.whole is None else row.whole
    connections = min(scenario.connections, machine.streams_max())
    watch = ([process.pid] if process else []) + [engine.pid]
    port = process.port if process else engines[-1]
    argv = [args.load, "--target", f"127.0.0.1:{port}", "--mode", scenario.mode, "--connections", str(connections),
            "--tokens", str(scenario.tokens), "--model", targets.MODEL, "--stagger-ms", str(scenario.stagger_ms),
            "--count-ms", str(round(args.seconds * 1000)), *[word for pid in watch for word in ("--watch", str(pid))]]
    argv += (["--whole"] if whole else []) + (["--text"] if row.text else [])
    if scenario.mode == "single":
        legs = engines if row.legs == 2 else engines[-1:]
        argv += ["--reference", ",".join(f"127.0.0.1:{at}" for at in legs)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_S + args.seconds, check=False,
                          preexec_fn=lambda: os.sched_setaffinity(0, {machine.LOAD_CORE}))
    if not done.stdout:
        return {"fault": f"load: {done.stderr[-600:]}"}
    return values(scenario, json.loads(done.stdout), process is not None)


def values(scenario, got, proxied):
    """What a batch says, by the names that bars use."""
    out = {"fault": got["fault"]}
    engine = got["watched"][-1]
    out["engine_core"] = engine["cpu_ns"] / 1e9 / got["seconds"]
    out["load_core"] = got["own"]["cpu_ns"] / 1e9 / got["seconds"]
    if scenario.mode != "hold":
        count = got["requests"] / 1e3 if scenario.unit == "requests" else got["events"] / 1e6
        out["per_s"] = got[scenario.unit] / got["seconds"]
        if not scenario.whole and got["reads"]:
            out["joined"] = got["events"] / got["reads"]
        for name in ("ttft", "gap", "relay", "total"):
            if got[name]["n"]:
                out.update({f"{name}_{which}": got[name][which] for which in ("mean", "p50", "p99")})
    if "reference" in got:
        for name in ("ttft", "total"):
            for which in ("p50", "p99"):
                out[f"own_{name}_{which}"] = got["reference"][name][which]
                out[f"added_{name}_{which}"] = got[name][which] - got["reference"][name][which]
    if proxied:
        proxy = got["watched"][0]
        out["core"] = proxy["cpu_ns"] / 1e9 / got["seconds"]
        ticks = proxy["user_ticks"] + proxy["system_ticks"]
        out["user"] = proxy["user_ticks"] / max(ticks, 1)
        out["rss_mib"] = proxy["rss_kib"][1] / 1024
        if scenario.mode != "hold":
            out["cost"] = proxy["cpu_ns"] / 1e9 / max(count, 1e-9)
    if scenario.mode == "hold" and proxied:
        before, opened = got["opened"][0]["rss_kib"]
        out["streams"] = got["streams"]
        out["bytes_per_stream"] = (opened - before) * 1024 / max(got["streams"], 1)
        out["grown_mib"] = (got["watched"][0]["rss_kib"][1] - opened) / 1024
    return out


def tell(scenario, number, row, batch):
    fault = f" WRONG: {batch['fault']}" if batch["fault"] else ""
    shown = [f"{name} {batch[name]:.4g}" for name in ("cost", "per_s", "core", "ttft_p50", "relay_p50", "added_ttft_p50", "bytes_per_stream")
             if name in batch]
    print(f"# {scenario.name} round {number + 1} {row.label}: {', '.join(shown)}, others {batch.get('others', 0):.2f}{fault}",
          file=sys.stderr, flush=True)
