#!/usr/bin/env python3
"""Narwhal in front of real engines: a prefill/decode pair joined by NIXL and an aggregated engine, which also says what is right.

usage: suite.py --dir SCRATCH --python VENV_PYTHON --bin NARWHAL [--drivers io_uring,epoll] [--only WORD]... [--no-deaths]
                [--rounds N] [--nice N]

Prints a line for each check, a table, and `N passed, N failed`; exit status 1 when any failed. Everything it starts, it stops.
"""
import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time

import cases
import deaths
import lifecycle
import wire
from cases import ENDLESS, USAGE
from engines import MODEL, Engine, Router, until
from report import Report
from wire import C, X, Broken, Client, ask, meaning, need, same


class Truth:
    """The aggregated engine's own answers, asked once each."""

    def __init__(self, port):
        self.port, self.known = port, {}

    def of(self, path, body, stream):
        body = {k: v for k, v in body.items() if k not in ("stream", "stream_options", "stream_interval")} | (USAGE if stream else {})
        key = path + json.dumps(body, sort_keys=True)
        if key not in self.known:
            self.known[key] = meaning(ask(self.port, path, body))
        return self.known[key]

    def tokens(self, body):
        return ask(self.port, "/tokenize", {"model": MODEL, **body}).json()["tokens"]


class Suite:
    def __init__(self, args):
        self.args, self.report = args, Report(args.only)
        self.folder = os.path.join(args.dir, "logs")
        os.makedirs(self.folder, exist_ok=True)
        python = args.python
        self.plain = Engine(self.folder, python, args.nice, "plain")
        self.prefill = Engine(self.folder, python, args.nice, "prefill", "kv_producer")
        self.decode = Engine(self.folder, python, args.nice, "decode", "kv_consumer")
        self.engines = [self.plain, self.prefill, self.decode]
        self.routers = []
        self.truth = Truth(self.plain.port)

    # ---- the frame

    def run(self):
        try:
            for engine in self.engines:
                engine.start()
            for engine in self.engines:
                engine.wait()
                print(f"{engine.name} ready on port {engine.port}, {time.monotonic() - self.report.start:.0f} s after start", flush=True)
            self.ids = self.truth.tokens({"prompt": cases.ONCE})
            self.unicode_ids = self.truth.tokens(cases.chat("Show me Unicode.", **cases.NO_THINK) | {"temperature": None})
            for driver in self.args.drivers.split(","):
                self.report.driver = driver
                self.one_driver(driver)
        except Exception:
            self.report.broken("the run")
        finally:
            for process in self.routers + self.engines:
                process.terminate()
            for process in self.routers + self.engines:
                process.stop()
        return self.report.finish()

    def one_driver(self, driver):
        """Each group by its name; one that breaks off does not take the others with it."""
        group = self.report.group_of
        group("first request", self.first_request, driver)
        with self.router("pair", driver, self.pair()) as router:
            group("conversations", self.conversations, router)
            group("features", self.features, router)
            group("refusals", self.refusals, router)
            group("smuggled parameters", self.smuggled, router)
            group("connections", self.connections, router)
            group("idle", self.idle, router)
            group("client leaves", self.client_leaves, router, self.decode)
            group("load", self.load, router, self.decode)
            group("pair at rest", self.at_rest, router)
        with self.router("both", driver, [(self.plain, "both")]) as router:
            group("both: conversations", self.conversations, router, 4)
            group("both: features", self.features, router)
            group("both: refusals", self.refusals, router)
            group("both: smuggled parameters", self.smuggled, router)
            group("both: client leaves", self.client_leaves, router, self.plain)
            group("both: load", self.load, router, self.plain)
            group("both: one leg", self.one_leg, router)
            group("both at rest", self.at_rest, router)
        if self.args.deaths:
            group("decode engine dies", deaths.decode_dies, self, driver)
            group("prefill engine stops", deaths.prefill_stops, self, driver)
            group("lifecycle", lifecycle.lifecycle, self, driver)

    def one_leg(self, router):
        with self.report.check("no prefill leg was sent"):
            need(router.state()["serving"]["prefill_attempts"] == 0, router.state()["serving"])

    def pair(self):
        return [(self.prefill, "prefill"), (self.decode, "decode")]

    @contextlib.contextmanager
    def router(self, name, driver, legs, **more):
        router = Router(self.folder, self.args.bin, f"narwhal-{name}-{driver}", driver, legs, **more)
        self.routers.append(router)
        router.start()
        used = {shard["driver"] for shard in router.state()["shards"]}
        need(used == {driver}, f"runs on {used} instead of {driver}")
        group = self.report.group
        try:
            yield router
        finally:
            self.report.group = group if name != "both" and name != "pair" else f"{name} at rest"
            with self.report.check(f"{router.name}: SIGTERM ends it with status 0, and no panic in its log"):
                status = router.stop()
                need(status == 0, f"status {status}\n{router.tail(600)}")
                need("panicked" not in router.tail(1 << 20), router.tail())
            self.routers.remove(router)

    def at_rest(self, router):
        with self.report.check("every gauge is 0 and the ledger adds up"):
            self.settle(router)

    def settle(self, router):
        """Waits until nothing is in flight, then checks the ledger. Returns the state."""
        def quiet():
            state = router.state()
            held = [state["serving"]["inflight"], state["admission"]["inflight"], state["admission"]["queued"], state["pools"]["legs_open"]]
            held += [n for line in state["resident"].values() for n in line.values()]
            return not any(held)
        until(5, f"at rest: {router.state()['resident']}", quiet)
        s = router.state()
        ends = sum(s[k] for k in ("served", "failed", "expired", "cancelled", "invalid_requests"))
        ends += s["admission"]["rejected"] + s["admission"]["refused"]
        need(s["offered"] == ends, f"offered {s['offered']}, ended {ends}")
        return s

    # ---- groups

    def first_request(self, driver):
        """Default time-outs, no warm-up: the engines may still have to shake hands. A new router each, for which the pair is new."""
        body = cases.chat("Say hello.")
        for name, more in [("streamed", USAGE), ("assembled", {})]:
            with self.router(f"first-{name}", driver, self.pair(), engine={}) as router:
                with self.report.check(f"served, {name}, in one attempt"):
                    begun = time.monotonic()
                    got = meaning(ask(router.port, X, body | more))
                    self.report.note(f"{name}: {time.monotonic() - begun:.2f} s")
                    same(got, self.truth.of(X, body, True))
                    serving = router.state()["serving"]
                    need((serving["prefill_attempts"], serving["decode_attempts"], serving["retry_attempts"]) == (1, 1, 0), serving)

    def conversations(self, router, every=1):
        for number, (name, body, reply) in enumerate(cases.conversations()):
            if number % every:
                continue
            with self.report.check(name + ", streamed"):
                got = meaning(ask(router.port, X, body | USAGE))
                self.scripted(got, reply)
                same(got, self.truth.of(X, body, True))
            with self.report.check(name + ", assembled"):
                got = meaning(ask(router.port, X, body))
                self.scripted(got, reply)
                same(got, self.truth.of(X, body, True))
                same(got, self.truth.of(X, body, False), but=("text",) if reply["tool_calls"] else ())

    def scripted(self, got, reply):
        need(got["text"].strip() == (reply["content"] or ""), f"text {got['text']!r}")
        need(got["reasoning"].strip() == (reply["reasoning"] or ""), f"reasoning {got['reasoning']!r}")
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in reply["tool_calls"]]
        need(got["calls"] == calls, f"calls {got['calls']}")
        need(got["finish_reason"] == ("tool_calls" if calls else "stop"), got["finish_reason"])

    def features(self, router):
        for name, path, body in cases.features(self.ids, self.unicode_ids):
            wants_ids = body.get("return_token_ids", False)
            asked = body | {"return_token_ids": True} if name in cases.WITH_IDS else body
            ids = () if asked is body else ("token_ids", "prompt_token_ids")
            with self.report.check(name + ", streamed"):
                before = self.observed(router)
                answer = ask(router.port, path, body | USAGE)
                got, want = meaning(answer), self.truth.of(path, asked, True)
                same(got, want, but=ids)
                need(wants_ids or b"token_ids" not in answer.body, "token ids that nobody asked for")
                need(not wants_ids or got["token_ids"], "no token ids")
                need(answer.headers["cache-control"] == "no-cache" and answer.headers["x-request-id"], answer.headers)
                self.counted(router, before, got)
            with self.report.check(name + ", streamed without usage"):
                got = meaning(ask(router.port, path, body | {"stream": True}))
                same(got, want, but=("usage",) + ids)
                need(got["usage"] is None, "usage that nobody asked for")
            with self.report.check(name + ", assembled"):
                before = self.observed(router)
                answer = ask(router.port, path, body)
                got = meaning(answer)
                same(got, want, but=ids)
                same(got, self.truth.of(path, asked, False), but=ids + (("text",) if name in cases.STREAM_DIFFERS else ()))
                need(wants_ids or b"token_ids" not in answer.body, "token ids that nobody asked for")
                self.counted(router, before, got)
        body = cases.chat("Say hello.", stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
        with self.report.check("usage in every event"):
            events = ask(router.port, X, body).events()
            need(all(e.get("usage") for e in events), "an event without usage")
            totals = [e["usage"]["completion_tokens"] for e in events]
            need(totals == sorted(totals) and totals[-1] == self.truth.of(X, body, True)["usage"][1], totals)

    def observed(self, router):
        return router.state()["serving"]["decode_tokens_observed"]

    def counted(self, router, before, got):
        """The router's own count is what the engine's usage says."""
        want = got["usage"][1]
        until(2, f"{want} tokens counted, {self.observed(router) - before} seen", lambda: self.observed(router) - before == want)

    def refusals(self, router):
        for name, path, body in cases.refused_by_engines():
            with self.report.check(name):
                direct, routed = ask(self.plain.port, path, body), ask(router.port, path, body)
                need(direct.status == 400, f"the engine itself says {direct.status} {direct.body[:200]!r}")
                need(routed.status == 400, f"status {routed.status} {routed.body[:300]!r}")
                got, want = routed.error(), [direct.error()["message"]]
                sized = ask(self.plain.port, "/tokenize", {k: body[k] for k in ("model", "messages", "prompt", "tools") if k in body})
                if sized.status == 400:
                    want.append(sized.error()["message"])
                need(got["type"] == "invalid_request_error", got)
                # At most 1 KiB of it.
                need(any(got["message"] == w or len(w.encode()) > 1024 and w.startswith(got["message"][:900]) for w in want),
                     f"message {got['message']!r}, the engine's {want!r}")
        for name, path, body, status, param, code in cases.refused_by_router():
            with self.report.check(name):
                before = router.state()["serving"]["prefill_attempts"]
                routed = ask(router.port, path, body)
                need(routed.status == status, f"status {routed.status} {routed.body[:300]!r}")
                error = routed.error()
                need((error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code), error)
                need(router.state()["serving"]["prefill_attempts"] == before, "a leg was sent")
        with self.report.check("engines serve on"):
            same(meaning(ask(router.port, C, cases.comp(cases.ONCE))), self.truth.of(C, cases.comp(cases.ONCE), True))

    def smuggled(self, router):
        want = self.truth.of(C, cases.comp(cases.ONCE, max_tokens=12), True)
        for name, body in cases.smuggled():
            with self.report.check(name):
                same(meaning(ask(router.port, C, body)), want, but=("usage",))
        with self.report.check("engines are alive"):
            for engine in self.engines:
                need(wire.fetch(engine.port, "/health").status == 200, engine.name)

    def connections(self, router):
        """One connection carries everything, pipelined as well; bodies come chunked and in pieces."""
        body = cases.comp(cases.ONCE, max_tokens=12)
        want = self.truth.of(C, body, True)
        with self.report.check("twenty requests on one connection"), Client(router.port) as client:
            for number in range(20):
                same(meaning(client.ask("POST", C, body | (USAGE if number % 2 else {}))), want)
        with self.report.check("pipelined"), Client(router.port) as client:
            for number in range(6):
                client.send("POST", C, body | (USAGE if number % 2 else {}))
            for number in range(6):
                answer = client.answer()
                need(answer.is_stream == bool(number % 2), "out of order")
                same(meaning(answer), want)
        with self.report.check("chunked request in pieces, 100-continue"), Client(router.port) as client:
            data = json.dumps(body).encode()
            head = f"POST {C} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
            client.sock.sendall(head.encode())
            need(client.head()[0] == 100, "no 100")
            for at in range(0, len(data), 7):
                part = data[at:at + 7]
                client.sock.sendall(b"%x\r\n%s\r\n" % (len(part), part))
            client.sock.sendall(b"0\r\n\r\n")
            same(meaning(client.answer()), want)
        with self.report.check("events come one by one, not at the end"), Client(router.port) as client:
            answer = client.ask("POST", C, cases.comp(cases.ONCE, max_tokens=240, stream=True))
            times = [at for at, _ in answer.pieces]
            need(len(times) > 20 and times[-1] - times[0] > 0.02, f"{len(times)} chunks over {times[-1] - times[0]:.4f} s")
            self.report.note(f"240 tokens in {len(times)} chunks over {times[-1] - times[0]:.3f} s")

    def idle(self, router):
        """Engines close idle sockets after 5 s."""
        body = cases.comp(cases.ONCE, max_tokens=12)
        want = self.truth.of(C, body, True)
        with Client(router.port) as client:
            for pause in (0, 6, 3.9, 4.1, 4.9, 4.97, 5.0, 5.03):
                with self.report.check(f"after {pause} s"):
                    before = router.state()["serving"]["retry_attempts"]
                    time.sleep(pause)
                    for more in ({}, USAGE):
                        same(meaning(client.ask("POST", C, body | more)), want)
                        same(meaning(ask(router.port, C, body | more)), want)
                    need(router.state()["serving"]["retry_attempts"] == before, "an attempt was spent")

    def client_leaves(self, router, engine):
        def begin(body, events):
            client = Client(router.port).send("POST", C, body)
            if events:
                status, headers = client.head()
                need(status == 200, f"status {status}")
                pieces = client.pieces(headers)
                for _ in range(events):
                    next(pieces)
            else:
                until(20, "the engine runs it", lambda: engine.running() >= 1, 0.01)
            return client

        stream = ENDLESS | {"stream": True}
        rows = [
            ("mid-stream", stream, 5, Client.close),
            ("mid-stream, by reset", stream, 5, Client.reset),
            ("mid-stream, shutting only its sending side", stream, 5, lambda c: c.sock.shutdown(socket.SHUT_WR)),
            ("while its answer is assembled", ENDLESS, 0, Client.close),
            ("while its answer is assembled, by reset", ENDLESS, 0, Client.reset),
        ]
        for name, body, events, leave in rows:
            with self.report.check(name):
                self.settle(router)
                before = router.state()["cancelled"]
                client = begin(body, events)
                need(engine.running() == 1, f"{engine.running()} run before")
                leave(client)
                until(1, "cancelled is counted", lambda: router.state()["cancelled"] == before + 1, 0.01)
                freed = self.soon_free(engine)
                self.settle(router)
                self.report.note(f"{name}: engine free after {freed * 1e3:.0f} ms")
        with self.report.check("sixteen at once, mid-stream"):
            before = router.state()["cancelled"]
            clients = [begin(stream, 3) for _ in range(16)]
            for client in clients:
                client.close()
            until(1, "cancelled is counted", lambda: router.state()["cancelled"] == before + 16, 0.01)
            self.soon_free(engine)
        with self.report.check("in every phase of a request"):
            before = self.settle(router)
            pauses = [0.0, 0.001, 0.002, 0.004, 0.008, 0.012, 0.016, 0.024, 0.032, 0.048, 0.064, 0.096, 0.128]
            for pause in pauses:
                body = cases.comp(f"{pause}: {cases.LONG}", max_tokens=200, ignore_eos=True, stream=True)
                client = Client(router.port).send("POST", C, body)
                time.sleep(pause)
                client.close()
            after = self.settle(router)
            need(after["offered"] - before["offered"] == len(pauses), "offered")
            need(after["cancelled"] - before["cancelled"] == len(pauses), f"cancelled {after['cancelled'] - before['cancelled']}")
            reasons = {k: n - before["outcome_reasons"]["cancelled"].get(k, 0) for k, n in after["outcome_reasons"]["cancelled"].items()}
            self.report.note(f"phases: { {k: n for k, n in reasons.items() if n} }")
            for each in self.engines:
                self.soon_free(each)
        with self.report.check("and the next client is served"):
            same(meaning(ask(router.port, C, cases.comp(cases.ONCE))), self.truth.of(C, cases.comp(cases.ONCE), True))

    def soon_free(self, engine):
        """Nothing runs on it within a second; on a starved machine, within a second more than when its own client leaves."""
        freed = until(30, "the engine's running requests go to 0", lambda: engine.running() == 0, 0.01)
        if freed > 1:
            alone = self.engine_alone(engine)
            need(freed <= alone + 1, f"{engine.name} is free after {freed:.2f} s, when left directly after {alone:.2f} s")
        return freed

    def engine_alone(self, engine):
        """How long an engine takes to be free of a client that talks to it directly and leaves."""
        client = Client(engine.port).send("POST", C, ENDLESS | {"stream": True})
        pieces = client.pieces(client.head()[1])
        for _ in range(5):
            next(pieces)
        client.close()
        return until(30, "the engine's running requests go to 0", lambda: engine.running() == 0, 0.01)

    def load(self, router, engine):
        """64 clients at once, some of them asking for ids to see merged tokens."""
        kinds = [
            ("story", X, cases.chat("Tell me a story.", **cases.NO_THINK), USAGE),
            ("completion, ids", C, cases.comp(cases.ONCE, return_token_ids=True), USAGE),
            ("unicode, ids", C, cases.comp(self.unicode_ids, max_tokens=120, return_token_ids=True), USAGE),
            ("calls", X, cases.chat("Compare the weather in Paris and Tokyo.", tools=cases.TOOLS), USAGE),
            ("count", X, cases.chat("Count to thirty."), USAGE),
            ("story, assembled", X, cases.chat("Tell me a story."), {}),
            ("calls, assembled", X, cases.chat("Compare the weather in Paris and Tokyo.", tools=cases.TOOLS), {}),
            ("logprobs", X, cases.chat("Say hello.", logprobs=True, top_logprobs=2), USAGE),
        ]
        for _, path, body, _ in kinds:
            self.truth.of(path, body, True)
        clients = [Client(router.port) for _ in range(64)]
        try:
            for number in range(self.args.rounds):
                self.load_round(router, engine, clients, kinds, number)
        finally:
            for client in clients:
                client.close()

    def load_round(self, router, engine, clients, kinds, number):
        self.settle(router)
        before, made = router.state(), engine.metric("generation_tokens_total")
        answers, faults = [None] * len(clients), []

        def work(i):
            _, path, body, more = kinds[i % len(kinds)]
            try:
                answers[i] = clients[i].ask("POST", path, body | more)
            except Exception as error:
                faults.append(f"client {i}: {type(error).__name__} {error}")

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(clients))]
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.monotonic() - begun
        usage, merged, events = 0, 0, 0
        for i, answer in enumerate(answers):
            name, path, body, _ = kinds[i % len(kinds)]
            with self.report.check(f"round {number}, client {i}, {name}"):
                need(answer is not None, faults[:3])
                got = meaning(answer)
                usage += got["usage"][1]
                same(got, self.truth.of(path, body, True))
                if answer.is_stream:
                    parsed = answer.events()
                    events += len(parsed)
                    merged += sum(len(c.get("token_ids") or []) > 1 for e in parsed for c in e["choices"])
        with self.report.check(f"round {number}: tokens counted are tokens made"):
            after = self.settle(router)
            counted = delta(after, before, "decode_tokens_observed")
            need(counted == usage, f"counted {counted}, usage {usage}")
            until(2, "the engine's own count", lambda: engine.metric("generation_tokens_total") - made == usage)
            need(after["served"] - before["served"] == len(clients), "served")
            need(delta(after, before, "retry_attempts") == 0, "retries")
        self.report.note(f"round {number}: {usage} tokens, {events} events, {merged} of them with several tokens, {took:.2f} s, "
                         f"{usage / took:.0f} tokens/s")


def delta(after, before, name):
    return after["serving"][name] - before["serving"][name]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dir", required=True)
    p.add_argument("--python", required=True)
    p.add_argument("--bin", required=True)
    p.add_argument("--drivers", default="io_uring,epoll")
    p.add_argument("--only", action="append", default=[], help="groups whose name holds this word")
    p.add_argument("--no-deaths", dest="deaths", action="store_false")
    p.add_argument("--rounds", type=int, default=4, help="rounds of 64 clients")
    p.add_argument("--nice", type=int, default=10, help="niceness of the engines")
    args = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(Suite(args).run())


if __name__ == "__main__":
    main()
