"""What Narwhal does when an engine is killed or stopped under its requests, and when the engine is back."""
import json
import os
import signal
import threading
import time

import cases
import wire
from cases import ENDLESS, USAGE
from engines import until
from wire import C, Client, ask, meaning, need, same


def decode_dies(suite, driver):
    """The engine core is killed: its HTTP server lives on a little, then closes."""
    report = suite.report
    spread = {"placement": "round_robin", "retry_budget": 100}
    with suite.router("dying-decode", driver, suite.pair()) as router, \
            suite.router("failover", driver, [(suite.plain, "both"), (suite.decode, "both")], serving=spread) as other:
        same(meaning(ask(router.port, C, cases.comp(cases.ONCE))), suite.truth.of(C, cases.comp(cases.ONCE), True))
        outcome = {}

        def assembled(name, port, body):
            try:
                outcome[name] = ask(port, C, body)
            except Exception as error:
                outcome[name] = error

        long = ENDLESS
        want = suite.truth.of(C, long, True)
        stream = Client(router.port).send("POST", C, long | {"stream": True})
        status, headers = stream.head()
        pieces = stream.pieces(headers)
        got = b"".join(next(pieces) for _ in range(5))
        threads = [threading.Thread(target=assembled, args=("pair", router.port, long))]
        threads += [threading.Thread(target=assembled, args=(f"failover {i}", other.port, long)) for i in range(4)]
        for thread in threads:
            thread.start()
        until(20, "the decode engine runs them", lambda: suite.decode.running() >= 4, 0.02)
        suite.decode.kill_core()
        with report.check("a stream ends with one error event, no [DONE], and well framed"):
            got += b"".join(pieces)
            answer = wire.Answer(status, headers, got, [])
            lines = answer.lines()
            need(b"[DONE]" not in lines, "[DONE]")
            errors = [line for line in lines if "error" in json.loads(line)]
            need(errors == lines[-1:], f"{len(errors)} errors, the last line {lines[-1][:200]!r}")
            error = json.loads(errors[0])["error"]
            need((error["message"], error["type"], error["code"]) == ("Upstream request failed", "decode", "failed"), error)
            report.note(f"{len(lines) - 1} events, then {lines[-1].decode()}")
        stream.close()
        for thread in threads:
            thread.join()
        with report.check("an assembled answer fails as a gateway does"):
            answer = outcome["pair"]
            need(isinstance(answer, wire.Answer), answer)
            report.note(f"assembled: {answer.status} {answer.body.decode()}")
            need(answer.status in (502, 503, 504), answer.status)
            need(answer.error()["type"] in ("decode", "prefill", "admission", "backend_unavailable"), answer.error())
        for i in range(4):
            with report.check(f"with another engine an assembled answer is served all the same, {i}"):
                answer = outcome[f"failover {i}"]
                need(isinstance(answer, wire.Answer), answer)
                same(meaning(answer), want)
        for i in range(8):
            with report.check(f"with another engine new requests are served, {i}"):
                body = cases.comp(cases.ONCE)
                same(meaning(ask(other.port, C, body | (USAGE if i % 2 else {}))), suite.truth.of(C, body, True))
        with report.check("new requests are refused at once"):
            begun = time.monotonic()
            answer = ask(router.port, C, cases.comp(cases.ONCE))
            report.note(f"new request: {answer.status} {answer.body.decode()} after {time.monotonic() - begun:.2f} s")
            need(answer.status in (502, 503), f"{answer.status} {answer.body[:200]!r}")
        with report.check("the router sees that the role is empty"):
            until(10, "/ready is 503", lambda: wire.fetch(router.port, "/ready").status == 503)
            answer = wire.fetch(router.port, "/ready")
            report.note(answer.body.decode())
            answer = ask(router.port, C, cases.comp(cases.ONCE))
            unavailable(answer)
        suite.decode.stop()
        suite.decode.start()
        recover(suite, router, suite.decode)
        with report.check("and the other router uses it again"):
            until(15, "two live engines", lambda: wire.fetch(other.port, "/health").json()["available_instances"] == 2)
            before = suite.decode.metric("generation_tokens_total")
            for _ in range(4):
                meaning(ask(other.port, C, cases.comp(cases.ONCE)))
            need(suite.decode.metric("generation_tokens_total") > before, "it got nothing")
        for name, r in (("pair", router), ("both", other)):
            with report.check(f"the {name} router is at rest"):
                state = suite.settle(r)
                ends = {"served": state["served"], "failed": state["failed"], "rejected": state["admission"]["rejected"]}
                report.note(f"{name}: {ends}, retries {state['serving']['retry_attempts']}")


def prefill_stops(suite, driver):
    """SIGTERM: it answers 500 while it says it is healthy, then closes."""
    report = suite.report
    with suite.router("dying-prefill", driver, suite.pair()) as router:
        same(meaning(ask(router.port, C, cases.comp(cases.ONCE))), suite.truth.of(C, cases.comp(cases.ONCE), True))
        stream = Client(router.port).send("POST", C, ENDLESS | USAGE)
        status, headers = stream.head()
        pieces = stream.pieces(headers)
        got = b"".join(next(pieces) for _ in range(5))
        os.kill(suite.prefill.child.pid, signal.SIGTERM)
        seen = {}
        with report.check("requests meanwhile are answered 502, 503 or 504, or served"):
            begun = time.monotonic()
            while time.monotonic() - begun < 4:
                body = cases.comp(f"{time.monotonic()} {cases.ONCE}", max_tokens=4)
                answer = ask(router.port, C, body)
                seen[answer.status] = seen.get(answer.status, 0) + 1
                need(answer.status in (200, 502, 503, 504), f"{answer.status} {answer.body!r}")
                if answer.status != 200:
                    need(answer.error()["type"] in ("admission", "prefill", "backend_unavailable"), answer.error())
                time.sleep(0.05)
            report.note(f"statuses {seen}")
            need(seen.keys() - {200}, "none failed")
        with report.check("a stream on the decode engine is not touched"):
            got += b"".join(pieces)
            same(meaning(wire.Answer(status, headers, got, [])), suite.truth.of(C, ENDLESS, True))
        stream.close()
        suite.prefill.stop()
        with report.check("without it 503 backend_unavailable"):
            until(10, "/ready is 503", lambda: wire.fetch(router.port, "/ready").status == 503)
            answer = ask(router.port, C, cases.comp(cases.ONCE))
            unavailable(answer)
        suite.prefill.start()
        recover(suite, router, suite.prefill)
        with report.check("at rest"):
            suite.settle(router)


def unavailable(answer):
    whole = f"{answer.status} {answer.headers} {answer.body!r}"
    need(answer.status == 503 and answer.headers.get("retry-after") == "1", whole)
    need(answer.error()["type"] == answer.error()["code"] == "backend_unavailable", whole)


def recover(suite, router, engine):
    took = engine.wait()
    with suite.report.check("it recovers when the engine is back, first request served"):
        until(15, "/ready is 200", lambda: wire.fetch(router.port, "/ready").status == 200)
        body = cases.comp(cases.ONCE)
        begun = time.monotonic()
        same(meaning(ask(router.port, C, body | USAGE)), suite.truth.of(C, body, True))
        suite.report.note(f"engine back after {took:.0f} s, first request {time.monotonic() - begun:.2f} s")
        for _ in range(4):
            same(meaning(ask(router.port, C, body)), suite.truth.of(C, body, True))
