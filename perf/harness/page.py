"""The page of a run: perf/results/README.md beside the dated JSON it is made of. Everything on it comes from that file."""
import json
import os

from . import plot, report, scenarios

HEAD = """# Measured

{date}, commit {commit}. {cpu}, {cores} cores, {os}, Linux {kernel}, loopback. {rounds} interleaved rounds of {seconds} s each; medians,
with least and greatest in brackets. Made by `{command}`; every batch that counts is in `{file}`.

{versions}

All proxies share one core, engine and load client the other. Each answer was checked token by token. Prompts are 180 token ids (a text of
as many numbers for smg, which takes no ids), answers 64 tokens, an event of 250 bytes each. CPU is the proxy's own, threads and system
included, from `schedstat`. *Relay* times run from the engine's write to the client's read. *Events a read* is what the
client reads at once, its own lateness included: at full speed events pile up before whoever is slower, who then reads more of them at once,
each cheaper; engine and client, which share a core, are nearly at its end too. So paced cases (`p1000`, `k1000`) tell what an event costs by itself. *Others* is what else used the machine, in cores.

`narwhal` and `vllm-router` send each request to a prefill engine first and to a decode engine then; `nginx`, `haproxy` and the bare `relay`
(`perf/relay.rs`, which understands nothing) pass it to one engine.

![CPU]({cpu_plot}) ![Latency]({latency_plot})
"""


def write(folder, result, known):
    """The JSON, the plots and the page."""
    os.makedirs(folder, exist_ok=True)
    name = f"{result['date']}.json"
    result = joined(os.path.join(folder, name), result, known)
    with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
        json.dump(result, out, separators=(",", ":"))
        out.write("\n")
    render(folder, name, result, known)


def joined(path, result, known):
    """With the cases that an earlier run of that day and build left there, and that this one did not have."""
    if not os.path.exists(path):
        return result
    with open(path, encoding="utf-8") as file:
        before = json.load(file)
    if any(before[key] != result[key] for key in ("commit", "machine", "rounds", "seconds")):
        return result
    all_of = {**before["scenarios"], **result["scenarios"]}
    result["scenarios"] = {name: all_of[name] for name in known if name in all_of}
    result["bars"] += [bar for bar in before["bars"] if bar["scenario"] not in {new["scenario"] for new in result["bars"]}]
    result["bars"].sort(key=lambda bar: list(known).index(bar["scenario"]))
    result["versions"] = {**before["versions"], **result["versions"]}
    return result


def render(folder, name, result, known):
    plots = {"cpu_plot": "cpu.svg", "latency_plot": "latency.svg"}
    for file, of in (("cpu.svg", plot.cpu), ("latency.svg", plot.latency)):
        with open(os.path.join(folder, file), "w", encoding="utf-8") as out:
            out.write(of(result))
    versions = "; ".join(what or name for name, what in result["versions"].items() if name not in ("direct", "relay"))
    parts = [HEAD.format(date=result["date"], commit=result["commit"], rounds=result["rounds"], seconds=result["seconds"], file=name,
                         versions=versions, command=result.get("command", "perf/run --out perf/results"), **result["machine"], **plots)]
    parts.append("## Bars\n\n" + report.bars_table(result["bars"]) + "\n")
    for case, section in result["scenarios"].items():
        scenario = known.get(case) or scenarios.Scenario(case, section["what"], 0, [], unit=section["unit"], mode=section["mode"])
        parts.append(f"## {case}\n\n{section['what']}.\n\n{report.table(scenario, section['rounds'])}\n")
    with open(os.path.join(folder, "README.md"), "w", encoding="utf-8") as out:
        out.write("\n".join(parts))
