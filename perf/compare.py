#!/usr/bin/env python3
"""What Narwhal costs beside nginx: CPU per relayed event, in one interleaved run on one machine, as ratios.

usage: compare.py [--bin NARWHAL] [--engine NARWHAL] [--load LOAD] [--nginx NGINX] [--cases s64,w64,...] [--rounds N] [--seconds S]
                  [--targets direct,nginx,io_uring,epoll] [--beside NAME=NARWHAL]... [--tokenize] [--quiet X]
                  [--patience S] [--limit S] [--bar X] [--json FILE]

Each case starts a simulated engine of its own (`narwhal engine`), nginx (one worker, unbuffered, keep-alive to the engine) and Narwhal
(one shard) on each driver; then every round runs the same load against each of them in turn, and compares within the round. The proxies
share one core, engine and load client another. A proxy's CPU is utime + stime of its process (nginx: its worker) between two marks of
the load client, which checks every token of every answer. `direct` is the client on the engine, without a proxy.

Exit status 0 when no case is over the bar, 1 when one is or an answer was wrong, 2 when something is missing. Without nginx it
measures Narwhal and `direct` alone. Needs Python 3.9, Linux, two cores, and what `cargo build --release --bins --example load` makes.
"""
import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PROXY_CORE, LOAD_CORE = 0, 1
MODEL, TOKENS = "tiny", 64
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
START_S, STOP_S, RUN_S = 15, 5, 60
TRIES, QUIET_S = 3, 0.3
NARWHALS = ("io_uring", "epoll")

# What a case asks of the engine and of the load client. `nginx_whole`: how nginx is asked where that differs from Narwhal.
# `bar`: whether the ratio is held against the bar; `unit`: what the cost is counted by.
CASES = {
    "s64": dict(what="one event a write", connections=64, unit="events", bar=True),
    "s512": dict(what="one event a write", connections=512, unit="events", bar=True),
    "w64": dict(what="eight events a write", connections=64, unit="events", bar=True, engine=["--events-per-write", "8"]),
    "p1000": dict(what="20 ms a token, staggered", connections=1000, unit="events", bar=True, engine=["--tpot-ms", "20"],
                  stagger_ms=TOKENS * 20),
    "a64": dict(what="assembled; nginx relays the stream", connections=64, unit="requests", bar=True, whole=True, nginx_whole=False),
    "r64": dict(what="429 before the body of 1 KiB; nginx returns 429", connections=64, unit="requests", bar=True, refused=True),
    "pd64": dict(what="prefill and decode; nginx has one leg", connections=64, unit="requests", bar=False, legs=2),
}
DEFAULT_CASES = ["s64", "w64", "p1000", "a64", "r64", "pd64"]


class Missing(Exception):
    """Something that has to be installed or built first."""


class Process:
    """A process that is ended when its case is over; its output is kept for when it fails."""

    def __init__(self, name, argv, core, folder):
        self.name, self.log = name, os.path.join(folder, name + ".log")
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                          preexec_fn=lambda: os.sched_setaffinity(0, {core}))

    def stop(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.child.kill()
        self.child.wait()

    def until_up(self, port):
        """Waits until it listens."""
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.child.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.05)
        with open(self.log, encoding="utf-8", errors="replace") as log:
            raise RuntimeError(f"{self.name} does not listen: {log.read()[-2000:]}")

    def only_child(self):
        """The pid of nginx's worker."""
        end = time.monotonic() + START_S
        path = f"/proc/{self.child.pid}/task/{self.child.pid}/children"
        while time.monotonic() < end:
            with open(path, encoding="ascii") as children:
                pids = children.read().split()
            if len(pids) == 1:
                return int(pids[0])
            time.sleep(0.05)
        raise RuntimeError(f"{self.name} has no single worker")


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def nginx_config(folder, port, upstream, refuse=False):
    path = os.path.join(folder, "nginx.conf")
    user = "user root;" if os.geteuid() == 0 else ""
    temporary = "".join(f"  {kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    with open(path, "w", encoding="ascii") as out:
        out.write(f"""{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr crit;
events {{ worker_connections 8192; }}
http {{
{temporary}  access_log off;
  keepalive_requests 1000000000;
  upstream engines {{
    server 127.0.0.1:{upstream};
    keepalive 2048;
    keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      {"return 429;" if refuse else ""}
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
""")
    return path


def fleet(folder, engines, tokenize, seats=8192):
    path = os.path.join(folder, "fleet.json")
    roles = ["both"] if len(engines) == 1 else ["prefill", "decode"]
    with open(path, "w", encoding="ascii") as out:
        json.dump({
            "schema": "narwhal.fleet", "schema_version": 2, "model": MODEL,
            "engines": [{"iid": role, "url": f"http://127.0.0.1:{port}", "role": role} for role, port in zip(roles, engines)],
            "slo": {"ttft_s": 60.0, "tpot_s": 10.0},
            "serving": {"admission": "open", "max_connections": seats},
            "engine": {"connector": "none" if len(engines) == 1 else "nixl", "tokenize": tokenize},
        }, out)
    return path


@contextlib.contextmanager
def started(case, args):
    """Engine and proxies of a case: name of each target, its port, and the pids whose CPU is its cost."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="narwhal-perf-"))
        os.chmod(folder, 0o755)

        def start(name, argv, core, port):
            process = Process(name, argv, core, folder)
            stack.callback(process.stop)
            process.until_up(port)
            return process

        legs = case.get("legs", 1)
        routers = [(driver + suffix, driver, path) for suffix, path in args.builds for driver in NARWHALS if driver in args.targets]
        ports = free_ports(legs + 1 + len(routers))
        engines, (nginx, *narwhals) = ports[:legs], ports[legs:]
        listens = [word for port in engines for word in ("--listen", f"127.0.0.1:{port}")]
        argv = [args.engine, "engine", *listens, "--model", MODEL, *case.get("engine", [])]
        engine = start("engine", argv, LOAD_CORE, engines[-1])
        targets = {}
        refused = case.get("refused", False)
        if "direct" in args.targets and legs == 1 and not case.get("whole") and not refused:
            targets["direct"] = (engines[-1], None)
        if "nginx" in args.targets:
            config = nginx_config(folder, nginx, engines[-1], refused)
            process = start("nginx", [args.nginx, "-p", folder, "-e", "stderr", "-c", config], PROXY_CORE, nginx)
            targets["nginx"] = (nginx, process.only_child())
        for (name, driver, path), port in zip(routers, narwhals):
            seats = 1 if refused else 8192
            argv = [path, "serve", "--fleet", fleet(folder, engines, args.tokenize, seats), "--listen", f"127.0.0.1:{port}",
                    "--shards", "1", "--cpus", str(PROXY_CORE), "--driver", driver]
            targets[name] = (port, start(name, argv, PROXY_CORE, port).child.pid)
        yield targets, engine.child.pid


def load(case, name, target, engine, args):
    """One batch; the cost of each part."""
    port, pid = target
    whole = case.get("nginx_whole", case.get("whole", False)) if name == "nginx" else case.get("whole", False)
    watch = [engine] + ([pid] if pid else [])
    argv = [args.load, "--target", f"127.0.0.1:{port}", "--connections", str(case["connections"]), "--tokens", str(TOKENS),
            "--model", MODEL, "--stagger-ms", str(case.get("stagger_ms", 0)), "--count-ms", str(round(args.seconds * 1000)),
            *(["--whole"] if whole else []), *(["--refused"] if case.get("refused") else []), *[word for p in watch for word in ("--watch", str(p))]]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_S + args.seconds,
                          preexec_fn=lambda: os.sched_setaffinity(0, {LOAD_CORE}))
    if not done.stdout:
        raise RuntimeError(f"load: {done.stderr}")
    got = json.loads(done.stdout)
    # Events where a token is one, so that assembled answers count the same.
    count = got["requests"] / 1e3 if case["unit"] == "requests" else got["events"] / 1e6
    cpu = [(t["user"] + t["system"]) / TICKS_PER_S for t in got["ticks"]]
    out = {"fault": got["fault"], "per_s": got[case["unit"]] / got["seconds"], "engine": cpu[0] / max(got["events"] / 1e6, 1e-9)}
    if pid:
        user = got["ticks"][1]["user"] / TICKS_PER_S
        out.update(cost=cpu[1] / max(count, 1e-9), share=cpu[1] / got["seconds"], user=user / max(cpu[1], 1e-9))
    return out


def ticks(pid):
    """Clock ticks of a process so far, fields 14 and 15 of proc(5)'s stat; its name may hold anything."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def busy():
    """Clock ticks that all cores have worked so far: user, nice, system, interrupts, and what the host took."""
    with open("/proc/stat", encoding="ascii") as stat:
        fields = [int(word) for word in stat.readline().split()[1:]]
    return sum(fields[:3]) + sum(fields[5:8])


def await_quiet(args):
    """Until others use little, but not for ever."""
    end = time.monotonic() + args.patience
    while time.monotonic() < end and not args.over.is_set():
        before, at = busy(), time.monotonic()
        time.sleep(QUIET_S)
        if (busy() - before) / TICKS_PER_S / (time.monotonic() - at) <= args.quiet:
            return


def quiet_load(case, name, target, engine, args):
    """A batch that nothing else on the machine disturbed, or the least disturbed of a few."""
    best = None
    for _ in range(TRIES):
        await_quiet(args)
        ours = [pid for pid in (engine, target[1]) if pid]
        before = busy() - sum(map(ticks, ours)) - sum(os.times()[:4]) * TICKS_PER_S
        at = time.monotonic()
        batch = load(case, name, target, engine, args)
        after = busy() - sum(map(ticks, ours)) - sum(os.times()[:4]) * TICKS_PER_S
        batch["others"] = max(0.0, (after - before) / TICKS_PER_S / (time.monotonic() - at))
        if batch["fault"]:
            return batch
        if best is None or batch["others"] < best["others"]:
            best = batch
        if best["others"] <= args.quiet or args.over.is_set():
            break
    return best


def measure(name, args):
    """All rounds of a case: the batches of each target, in order."""
    case = CASES[name]
    with started(case, args) as (targets, engine):
        rounds = {target: [] for target in targets}
        order = list(targets)
        for number in range(args.rounds):
            for target in order:
                if args.over.is_set() or time.monotonic() > args.end:
                    return {target: batches[:number] for target, batches in rounds.items()}
                batch = quiet_load(case, target, targets[target], engine, args)
                rounds[target].append(batch)
                fault = f" WRONG: {batch['fault']}" if batch["fault"] else ""
                cost = f"{batch['cost']:.4g}" if "cost" in batch else "-"
                print(f"# {name} round {number + 1} {target}: {cost}, others {batch['others']:.2f}{fault}", file=sys.stderr, flush=True)
            # Nobody always follows the same one.
            order = order[1:] + order[:1]
        return rounds


def summary(name, rounds, bar):
    """Medians, and for Narwhal the ratios to nginx of the same round."""
    out = []
    for target, batches in rounds.items():
        median = lambda key: statistics.median(b[key] for b in batches)
        row = {"case": name, "target": target, "unit": CASES[name]["unit"], "per_s": median("per_s"), "engine": median("engine"),
               "others": median("others"), "wrong": sum(bool(b["fault"]) for b in batches)}
        if "cost" in batches[0]:
            costs = [b["cost"] for b in batches]
            row.update(cost=statistics.median(costs), cost_min=min(costs), cost_max=max(costs), share=median("share"), user=median("user"))
        if target.split(":")[0] in NARWHALS and "nginx" in rounds:
            ratios = [mine["cost"] / max(other["cost"], 1e-9) for mine, other in zip(batches, rounds["nginx"])]
            row.update(ratio=statistics.median(ratios), ratio_min=min(ratios), ratio_max=max(ratios))
            row["over"] = CASES[name]["bar"] and ":" not in target and row["ratio"] > bar
        out.append(row)
    return out


def table(rows):
    lines = ["| case | target | CPU s per 1 M events (or 1000 requests) | spread | against nginx | spread | user | core used | per s | engine | others |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        cost = [f"{r['cost']:.3g}", f"{r['cost_min']:.3g} to {r['cost_max']:.3g}"] if "cost" in r else ["", ""]
        ratio = [f"{r['ratio']:.2f}" + (" over" if r["over"] else ""), f"{r['ratio_min']:.2f} to {r['ratio_max']:.2f}"] if "ratio" in r else ["", ""]
        shares = [f"{r['user']:.2f}", f"{r['share']:.2f}"] if "cost" in r else ["", ""]
        wrong = " WRONG" if r["wrong"] else ""
        cells = [r["case"] + wrong, r["target"], *cost, *ratio, *shares, f"{r['per_s']:,.0f} {r['unit']}", f"{r['engine']:.2f}", f"{r['others']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def machine():
    model = "unknown"
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as info:
        model = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), model)
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release()}


def built(given, *below):
    """A path that was given, or what cargo made."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = given or os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(root, "target")), "release", *below)
    if not os.access(path, os.X_OK):
        raise Missing(f"{path} is missing: cargo build --release --bins --example load")
    return path


def check(args):
    """What is needed; without nginx the rest goes on."""
    args.bin, args.load = built(args.bin, "narwhal"), built(args.load, "examples", "load")
    args.engine = built(args.engine or args.bin)
    args.builds = [("", args.bin)]
    for name, _, path in (word.partition("=") for word in args.beside):
        args.builds.append((":" + name, built(path)))
    if not {PROXY_CORE, LOAD_CORE} <= os.sched_getaffinity(0):
        raise Missing(f"cores {PROXY_CORE} and {LOAD_CORE} are needed")
    # Debian puts it where the path of a user does not lead.
    args.nginx = shutil.which(args.nginx, path=os.environ.get("PATH", "") + ":/usr/sbin")
    if not args.nginx and "nginx" in args.targets:
        args.targets.remove("nginx")
        print("# nginx is missing (Debian: apt-get install --no-install-recommends nginx-light): no ratios", file=sys.stderr)
    unknown = [c for c in args.cases if c not in CASES] + [t for t in args.targets if t not in ("direct", "nginx", *NARWHALS)]
    if unknown:
        raise Missing(f"unknown: {', '.join(unknown)}")


def main():
    words = lambda text: text.split(",")
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--bin", help="the router [default: cargo's release build]")
    parser.add_argument("--engine", help="the binary of the simulated engine [default: --bin]")
    parser.add_argument("--load", help="the load client [default: cargo's release build]")
    parser.add_argument("--nginx", default="nginx")
    parser.add_argument("--cases", type=words, default=DEFAULT_CASES, help=f"of {','.join(CASES)}")
    parser.add_argument("--targets", type=words, default=["direct", "nginx", *NARWHALS])
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=NARWHAL", help="another build, measured as DRIVER:NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="counted time of a batch")
    parser.add_argument("--tokenize", action="store_true", help="Narwhal asks the engine for each prompt's length, its default")
    parser.add_argument("--bar", type=float, default=1.5, help="most that a case may cost of what nginx does")
    parser.add_argument("--quiet", type=float, default=0.15, help="part of a core that others may use; a batch over it is tried again")
    parser.add_argument("--patience", type=float, default=10, help="seconds that a batch waits for a quiet machine at most")
    parser.add_argument("--json", metavar="FILE", help="also every batch, as JSON")
    parser.add_argument("--limit", type=float, default=900, help="seconds after which no further batch begins")
    args = parser.parse_args()
    args.over, args.end = threading.Event(), time.monotonic() + args.limit
    try:
        check(args)
    except Missing as missing:
        print(f"compare.py: {missing}", file=sys.stderr)
        return 2
    # Seen between batches, so that what was started is stopped. An exception out of a handler could leave a lock behind.
    signal.signal(signal.SIGTERM, lambda *_: args.over.set())
    rows, batches = [], {}
    for name in args.cases:
        rounds = measure(name, args)
        if not all(rounds.values()):
            print(f"# stopped before {name} had a round", file=sys.stderr)
            break
        batches[name] = rounds
        rows += summary(name, rounds, args.bar)
    print(table(rows))
    for name in batches:
        print(f"{name}: {CASES[name]['what']}, {CASES[name]['connections']} connections, {TOKENS} tokens an answer")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({"machine": machine(), "rounds": args.rounds, "seconds": args.seconds, "rows": rows, "batches": batches}, out, indent=1)
    return int(any(r["wrong"] or r.get("over") for r in rows))


if __name__ == "__main__":
    sys.exit(main())
