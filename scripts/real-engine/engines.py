"""Starts and stops what the suite needs: vLLM engines on the CPU, and Narwhal. Each is stopped by the id of its own process group."""
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time

import wire

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = "tiny"
# The machine is slow and may be shared: silence is judged with patience, unless a check wants the defaults.
PATIENT = {"first_token_timeout_s": 60, "decode_read_timeout_s": 60, "tokenize_timeout_s": 30}


def free_port():
    """Below the range from which the kernel gives ports to others: an engine that restarts finds its own again."""
    while True:
        port = random.randrange(15000, 32000)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind((wire.HOST, port))
            return port


def until(seconds, what, ready, pause=0.05):
    """Waits for a condition; errors of a peer that is not up yet mean no."""
    start = time.monotonic()
    while True:
        try:
            if ready():
                return time.monotonic() - start
        except (OSError, wire.Broken):
            pass
        if time.monotonic() - start > seconds:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(pause)


class Process:
    """A child in a process group of its own, its output in a file."""

    def __init__(self, folder, name):
        self.name, self.log, self.child = name, os.path.join(folder, name + ".log"), None

    def spawn(self, command, env=None, cwd=None):
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, cwd=cwd,
                                          start_new_session=True)

    def alive(self):
        return self.child is not None and self.child.poll() is None

    def tail(self, n=3000):
        with open(self.log, "rb") as log:
            return log.read()[-n:].decode("utf-8", "replace")

    def kill_group(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)

    def terminate(self):
        if self.alive():
            self.child.terminate()

    def stop(self, seconds=30):
        """SIGTERM, then SIGKILL to what is left of the group. Returns the exit status."""
        if self.child is None:
            return None
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(seconds)
        self.kill_group()
        return self.child.wait()


class Engine(Process):
    """One vLLM server. `role`: plain, or kv_producer / kv_consumer of a NIXL pair."""

    def __init__(self, folder, python, nice, name, role="plain"):
        super().__init__(folder, name)
        self.folder, self.python, self.nice, self.role = folder, python, nice, role
        self.port, self.side_port = free_port(), free_port()

    @property
    def url(self):
        return f"http://{wire.HOST}:{self.port}"

    def start(self):
        env = dict(os.environ)
        env.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", CUDA_VISIBLE_DEVICES="",
                   VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", VLLM_HOST_IP=wire.HOST,
                   GLOO_SOCKET_IFNAME="lo", VLLM_NIXL_SIDE_CHANNEL_HOST=wire.HOST, VLLM_NIXL_SIDE_CHANNEL_PORT=str(self.side_port),
                   UCX_TLS="tcp,self,sm", UCX_NET_DEVICES="lo", NIXL_PROGRESS_DELAY_US="200", VLLM_POLL_PAUSE_S="0.0002",
                   VLLM_CACHE_ROOT=os.path.join(self.folder, "cache"))
        # `vllm serve` asks for the metadata of a distribution called vllm, which vllm-cpu does not ship; the module does the same.
        # float32: with bfloat16 attention uses AMX where the processor has it, and a decode engine that has not yet computed a long
        # prompt has not asked the kernel for AMX, so that its first token is an illegal instruction.
        command = ["nice", "-n", str(self.nice), self.python, "-m", "vllm.entrypoints.openai.api_server",
                   "--model", os.path.join(HERE, "tiny_model"),
                   "--served-model-name", MODEL, "--host", wire.HOST, "--port", str(self.port), "--max-model-len", "2048",
                   "--max-num-seqs", "64", "--enforce-eager", "--dtype", "float32", "--enable-auto-tool-choice",
                   "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--enable-prompt-tokens-details"]
        if self.role != "plain":
            transfer = {"kv_connector": "NixlConnector", "kv_role": self.role, "kv_load_failure_policy": "fail"}
            command += ["--kv-transfer-config", json.dumps(transfer)]
        self.spawn(command, env, self.folder)
        return self

    def wait(self, seconds=600):
        def ready():
            if not self.alive():
                raise RuntimeError(f"{self.name} died\n{self.tail()}")
            return wire.fetch(self.port, "/health").status == 200
        return until(seconds, f"{self.name} answers /health", ready, 0.3)

    def core(self):
        """Process id of the engine core, a descendant of the HTTP server."""
        parents, names = {}, {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as f:
                    parents[int(pid)] = int(f.read().rsplit(")", 1)[1].split()[1])
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    names[int(pid)] = f.read()
            except OSError:
                continue
        for pid, name in names.items():
            up = pid
            while up in parents and up != self.child.pid:
                up = parents[up]
            if up == self.child.pid and b"EngineCore" in name:
                return pid
        raise RuntimeError(f"no engine core below {self.child.pid}")

    def kill_core(self):
        os.kill(self.core(), signal.SIGKILL)

    def metric(self, name):
        return wire.metrics(self.port).get("vllm:" + name, 0.0)

    def running(self):
        seen = wire.metrics(self.port)
        return seen["vllm:num_requests_running"] + seen["vllm:num_requests_waiting"]


class Router(Process):
    """Narwhal in front of some engines: `legs` is a list of (engine, role)."""

    def __init__(self, folder, binary, name, driver, legs, engine=None, serving=None, shards=2):
        super().__init__(folder, name)
        self.binary, self.driver, self.shards, self.port = binary, driver, shards, free_port()
        self.roles = [role for _, role in legs]
        self.fleet = {
            "schema": "narwhal.fleet", "schema_version": 2, "model": MODEL,
            "engines": [{"iid": e.name, "url": e.url, "role": role, "pin": role != "both"} for e, role in legs],
            "slo": {"ttft_s": 30.0, "tpot_s": 1.0},
            "serving": {"admission": "open", "request_timeout_s": 300, "drain_window_s": 0, **(serving or {})},
            "engine": {"backend": "vllm", "connector": "none" if set(self.roles) == {"both"} else "nixl",
                       **(PATIENT if engine is None else engine)},
            "controller": {"monitor_interval_s": 0.5},
            "recovery": {"liveness_every": 1, "liveness_misses": 2},
        }

    def start(self):
        path = os.path.join(os.path.dirname(self.log), self.name + ".fleet.json")
        with open(path, "w") as f:
            json.dump(self.fleet, f, indent=1)
        self.spawn([self.binary, "serve", "--fleet", path, "--listen", f"{wire.HOST}:{self.port}", "--driver", self.driver,
                    "--shards", str(self.shards)])

        def ready():
            if not self.alive():
                raise RuntimeError(f"{self.name} died\n{self.tail()}")
            return wire.fetch(self.port, "/ready").status == 200
        until(20, f"{self.name} answers /ready", ready)
        return self

    def state(self):
        return wire.fetch(self.port, "/narwhal/state").json()
