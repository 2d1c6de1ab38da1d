"""What is measured: how each target is found, told apart by version, configured and started.

All proxies are given one core and one worker or thread; logs are off, connections to the engine stay open, nothing is buffered, retries
and circuit breakers are off. `engines` is [prefill, decode]; a target of one leg asks the last.
"""
import json
import os
import shutil

from . import machine
from .process import Process, free_ports

MODEL = "tiny"
SEATS = 10_000


def find(args):
    """The targets that are here, and what each is: a path, and what it says of its version."""
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    rivals = os.path.join(args.rivals, "bin") if args.rivals else path
    found = {"direct": ("", ""), "narwhal": (args.bin, machine.said([args.bin, "--version"])), "relay": (args.relay, "")}
    for name, where, version in (("nginx", path, ["-v"]), ("haproxy", path, ["-v"]),
                                 ("vllm-router", rivals, None), ("smg", rivals, None)):
        binary = shutil.which(name, path=where)
        if binary:
            found[name] = (binary, machine.said([binary, *version]) if version else package(binary, name))
    return found


def package(binary, name):
    """The version of a Python package beside its command."""
    python = os.path.join(os.path.dirname(binary), "python")
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    return f"{name} {machine.said([python, '-c', code])}"


def start(row, engines, scenario, found, folder, args):
    """The running process that a row asks."""
    port, other = free_ports(2)
    folder = os.path.join(folder, row.label.replace("/", "-").replace(" ", "-").replace(",", ""))
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o755)
    argv = COMMANDS[row.target](row, port, other, engines, scenario, found, folder, args)
    process = Process(row.label, argv, {machine.PROXY_CORE}, folder, port)
    try:
        process.until_up()
        if row.target == "nginx":
            process.use_only_child()
        if row.target in ("vllm-router", "smg"):
            process.until_ready()
    except RuntimeError:
        process.stop()
        raise
    return process


def narwhal(row, port, _other, engines, scenario, _found, folder, args):
    path = os.path.join(folder, "fleet.json")
    roles = ["prefill", "decode"] if row.legs == 2 else ["both"]
    urls = engines if row.legs == 2 else engines[-1:]
    with open(path, "w", encoding="ascii") as out:
        json.dump({
            "schema": "narwhal.fleet", "schema_version": 2, "model": MODEL,
            "engines": [{"iid": role, "url": f"http://127.0.0.1:{at}", "role": role} for role, at in zip(roles, urls)],
            "slo": {"ttft_s": 60.0, "tpot_s": 10.0},
            "serving": {"admission": "open", "max_connections": 1 if scenario.mode == "refused" else SEATS},
            "engine": {"connector": "nixl" if row.legs == 2 else "none"},
        }, out)
    return [args.builds[row.build], "serve", "--fleet", path, "--listen", f"127.0.0.1:{port}", "--shards", str(row.shards),
            "--cpus", ",".join(str(core) for core in range(row.shards)), "--driver", row.driver]


def relay(row, port, _other, engines, _scenario, _found, _folder, args):
    return [args.relay, "--listen", f"127.0.0.1:{port}", "--upstream", f"127.0.0.1:{engines[-1]}", "--driver", row.driver]


def nginx(_row, port, _other, engines, scenario, found, folder, _args):
    path = os.path.join(folder, "nginx.conf")
    user = "user root;" if os.geteuid() == 0 else ""
    # Twice what is needed: nginx closes connections that wait for a request when a sixteenth of all or less is free.
    connections = 4 * machine.streams_max()
    temporary = "".join(f"  {kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    with open(path, "w", encoding="ascii") as out:
        out.write(f"""{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr crit;
events {{ worker_connections {connections}; }}
http {{
{temporary}  access_log off;
  keepalive_requests 1000000000;
  upstream engines {{
    server 127.0.0.1:{engines[-1]};
    keepalive 2048;
    keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      {"return 429;" if scenario.mode == "refused" else ""}
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
""")
    return [found["nginx"][0], "-p", folder, "-e", "stderr", "-c", path]


def haproxy(_row, port, _other, engines, _scenario, found, folder, _args):
    path = os.path.join(folder, "haproxy.cfg")
    most = machine.streams_max()
    with open(path, "w", encoding="ascii") as out:
        out.write(f"""global
  nbthread 1
  maxconn {most}
defaults
  mode http
  timeout connect 10s
  timeout client 600s
  timeout server 600s
  option http-keep-alive
  option http-no-delay
  http-reuse always
frontend clients
  bind 127.0.0.1:{port} backlog 4096
  default_backend engines
backend engines
  server engine 127.0.0.1:{engines[-1]} maxconn {most} pool-max-conn -1
""")
    return [found["haproxy"][0], "-db", "-q", "-f", path]


# Both are of one family, and so are their words.
RUST = ["--host", "127.0.0.1", "--disable-retries", "--disable-circuit-breaker", "--policy", "round_robin",
        "--max-concurrent-requests", str(SEATS), "--queue-size", str(SEATS)]


def vllm_router(row, port, other, engines, _scenario, found, _folder, _args):
    argv = [found["vllm-router"][0], *RUST, "--log-level", "error", "--port", str(port), "--prometheus-port", str(other)]
    if row.legs == 1:
        return [*argv, "--worker-urls", f"http://127.0.0.1:{engines[-1]}"]
    return [*argv, "--vllm-pd-disaggregation", "--kv-connector", "nixl",
            "--prefill", f"http://127.0.0.1:{engines[0]}", "--decode", f"http://127.0.0.1:{engines[1]}"]


def smg(row, port, other, engines, _scenario, found, _folder, _args):
    argv = [found["smg"][0], "launch", *RUST, "--log-level", "error", "--port", str(port), "--prometheus-port", str(other)]
    if row.legs == 1:
        return [*argv, "--worker-urls", f"http://127.0.0.1:{engines[-1]}"]
    return [*argv, "--pd-disaggregation", "--prefill", f"http://127.0.0.1:{engines[0]}", "--decode", f"http://127.0.0.1:{engines[1]}"]


COMMANDS = {"narwhal": narwhal, "relay": relay, "nginx": nginx, "haproxy": haproxy, "vllm-router": vllm_router, "smg": smg}
