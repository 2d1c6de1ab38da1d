"""The machine: which cores are used for what, whether it is quiet, and what it is.

A proxy that is held up reads more events at once, and each costs less: figures of a disturbed machine are lower and not comparable. So a
batch waits until others use little, and a batch that was disturbed all the same is tried again.
"""
import contextlib
import os
import platform
import resource
import subprocess
import time

PROXY_CORE, LOAD_CORE = 0, 1
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
QUIET_S = 0.3
DESCRIPTORS = 65536


def ticks(pid):
    """Clock ticks of a process so far, fields 14 and 15 of proc(5)'s stat; its name may hold anything."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        fields = stat.read().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0


def busy():
    """Clock ticks that all cores have worked so far: user, nice, system, interrupts, and what the host took."""
    with open("/proc/stat", encoding="ascii") as stat:
        fields = [int(word) for word in stat.readline().split()[1:]]
    return sum(fields[:3]) + sum(fields[5:8])


class Others:
    """What others than `pids` and we ourselves use, from its making on."""

    def __init__(self, pids):
        self.pids = pids
        self.before, self.at = self._rest(), time.monotonic()

    def _rest(self):
        return busy() - sum(map(ticks, self.pids)) - sum(os.times()[:4]) * TICKS_PER_S

    def share(self):
        """In cores."""
        return max(0.0, (self._rest() - self.before) / TICKS_PER_S / (time.monotonic() - self.at))


def await_quiet(args):
    """Until others use little, but not for ever."""
    end = time.monotonic() + args.patience
    while time.monotonic() < end and not args.over.is_set():
        others = Others([])
        time.sleep(QUIET_S)
        if others.share() <= args.quiet:
            return


def raise_limits():
    """A stream is two descriptors to a proxy, and there are to be ten thousand. For us and all we start."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (max(hard, DESCRIPTORS), hard):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            return


def streams_max():
    """How many streams a proxy has descriptors for, with some left for connections that are waiting to be used again."""
    return (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 2000) // 2


def describe():
    """For the record."""
    model = "unknown"
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as info:
        model = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), model)
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release().split("-")[0], "os": platform.freedesktop_os_release().get("PRETTY_NAME", "")}


def said(argv):
    """The first line that a program says of its version; both streams, as programs differ."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return "missing"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0].strip() if lines else "unknown"
