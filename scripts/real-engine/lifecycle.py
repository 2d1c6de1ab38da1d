"""Each engine of the pair is drained and stopped, told to stop, and killed, under load; then it starts anew. Every answer meanwhile is
right, or one of the errors that may be said; a drain breaks nothing at all."""
import json
import os
import signal
import threading
import time

import cases
import wire
from cases import USAGE
from deaths import recover, unavailable
from engines import until
from wire import C, Client, ask, meaning, need, same

# Without usage, which a stream that breaks off has not.
BODIES = [cases.comp(cases.ONCE), cases.comp(cases.ONCE, max_tokens=12), cases.comp(cases.LONG, max_tokens=60, ignore_eos=True)]
ERRORS = {502: {"prefill", "decode", "admission"}, 504: {"prefill", "decode", "admission"},
          503: {"prefill", "decode", "admission", "backend_unavailable"}}


class Load:
    """Clients that ask until they are told to stop, and look at every answer."""

    def __init__(self, suite, port, clients=3):
        self.port, self.ends, self.seen, self.wrong = port, threading.Event(), {}, []
        self.lock = threading.Lock()
        self.truth = [suite.truth.of(C, body, True) for body in BODIES]
        self.threads = [threading.Thread(target=self.work, args=(i,)) for i in range(clients)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        for thread in self.threads:
            thread.join()

    def work(self, number):
        while not self.ends.is_set():
            number += 1
            at, streams = number % len(BODIES), number % 2 == 0
            try:
                what = self.one(BODIES[at] | (USAGE if streams else {}), self.truth[at])
            except Exception as error:
                what = "wrong"
                with self.lock:
                    self.wrong.append(f"{type(error).__name__} {error}"[:600])
            with self.lock:
                self.seen[what] = self.seen.get(what, 0) + 1
            time.sleep(0.005 if what == "whole" else 0.1)

    def one(self, body, truth):
        with Client(self.port) as client:
            answer = client.ask("POST", C, body)
        if answer.status != 200:
            return self.refused(answer)
        if not answer.is_stream or answer.body.endswith(b"data: [DONE]\n\n"):
            same(meaning(answer), truth)
            return "whole"
        return self.broken_off(answer, truth)

    def refused(self, answer):
        error = answer.error()
        need(error["type"] in ERRORS.get(answer.status, ()), f"{answer.status} {answer.body[:300]!r}")
        need(answer.status != 503 or answer.headers.get("retry-after") == "1", answer.headers)
        return f"{answer.status} {error['type']}"

    def broken_off(self, answer, truth):
        """What came is the beginning of the right text, and one error event ends it."""
        events = [json.loads(line) for line in answer.lines()]
        error = events.pop().get("error")
        want = {"message": "Upstream request failed", "type": "decode", "code": "failed"}
        need(error == want, error)
        need(not any("error" in event for event in events), "two errors")
        text = "".join(choice["text"] for event in events for choice in event["choices"])
        need(truth["text"].startswith(text), f"{text!r} does not begin {truth['text']!r}")
        return "broken off"


def lifecycle(suite, driver):
    with suite.router("lifecycle", driver, suite.pair(), serving={"retry_budget": 100}) as router:
        for engine in (suite.prefill, suite.decode):
            for way in (drained, told_to_stop, killed):
                suite.report.note(f"{engine.name}, {way.__name__}")
                with Load(suite, router.port) as load:
                    until(30, "answers come", lambda: load.seen.get("whole", 0) >= 6)
                    way(suite, router, engine, load)
                    served = load.seen.get("whole", 0)
                    until(60, "answers come again", lambda: load.seen.get("whole", 0) >= served + 6)
                with suite.report.check(f"{engine.name} {way.__name__}: no wrong answer"):
                    suite.report.note(f"{load.seen}")
                    need(not load.wrong, f"{len(load.wrong)}: {load.wrong[:3]}")
                with suite.report.check(f"{engine.name} {way.__name__}: at rest"):
                    suite.settle(router)


def wish(router, what, engine):
    return ask(router.port, f"/narwhal/lifecycle/{what}", {"engines": [engine.name]})


def row(router, engine):
    rows = wire.fetch(router.port, "/narwhal/lifecycle").json()["engines"]
    return next(row for row in rows if row["iid"] == engine.name)


def drained(suite, router, engine, load):
    """As an operator does it: nothing breaks, new work is told at once that nobody is there."""
    check = suite.report.check
    with check(f"{engine.name} drains and is empty"):
        need(wish(router, "drain", engine).status == 200, "drain")
        took = until(60, "ready_to_stop", lambda: row(router, engine)["state"] == "ready_to_stop")
        suite.report.note(f"empty after {took:.2f} s")
        need(engine.running() == 0, f"{engine.running()} requests run on it")
    with check(f"without {engine.name} 503 backend_unavailable"):
        unavailable(ask(router.port, C, BODIES[0]))
    with check("the old process is not taken back"):
        answer = wish(router, "readmit", engine)
        need(answer.status == 409, f"{answer.status} {answer.body[:600]!r}")
    engine.stop()
    with check("nor one that is not there"):
        answer = wish(router, "readmit", engine)
        need(answer.status == 409, f"{answer.status} {answer.body[:600]!r}")
    engine.start()
    engine.wait()
    with check(f"{engine.name} is readmitted"):
        answer = wish(router, "readmit", engine)
        need(answer.status == 200, f"{answer.status} {answer.body[:600]!r}")
        suite.report.note(answer.body.decode()[:300])
    with check("the drain broke nothing"):
        hurt = {what: n for what, n in load.seen.items() if what not in ("whole", "503 backend_unavailable")}
        need(not hurt, hurt)


def told_to_stop(suite, router, engine, load):
    os.kill(engine.child.pid, signal.SIGTERM)
    engine.stop()
    engine.start()
    recover(suite, router, engine)


def killed(suite, router, engine, load):
    engine.kill_group()
    engine.stop()
    engine.start()
    recover(suite, router, engine)
