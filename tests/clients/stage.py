"""Routers and their engines, as a suite asks the test for them: one line of JSON each way on standard input and output.

What may be asked for stands in stage.rs. Standard output is the test's own; whatever else is printed goes to standard error.
"""

import asyncio
import contextlib
import inspect
import json
import os
import sys
import threading
import traceback

MODEL = "tiny"
# Seconds that anything may take that must happen.
PATIENCE_S = 20

_questions = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
_one_at_a_time = threading.Lock()

# The ends that a request may come to, and their counters.
ENDS = {
    "served": "/served",
    "failed": "/failed",
    "expired": "/expired",
    "cancelled": "/cancelled",
    "invalid": "/invalid_requests",
    "rejected": "/admission/rejected",
    "refused": "/admission/refused",
}


def ask(do, **more):
    with _one_at_a_time:
        _questions.write(json.dumps({"do": do, **more}) + "\n")
        _questions.flush()
        line = sys.stdin.readline()
    if not line:
        raise RuntimeError(f"no reply to {do}: the test is gone")
    return json.loads(line)


def recorded(name):
    """A recorded stream as chunks for a script, or a recorded answer."""
    return ask("recorded", name=name)


def event(text=None, finish=None, **delta):
    """One event of a scripted chat stream, with a token."""
    if text is not None:
        delta["content"] = text
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": [7]}
    whole = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}
    return f"data: {json.dumps(whole)}\n\n"


class World:
    """A router. Its engines are scripted, or simulated with words that tell their order."""

    def __init__(self, roles=("prefill", "decode"), simulated=False, **serving):
        started = ask("start", roles=list(roles), simulated=simulated, serving=serving)
        self.number = started["world"]
        self.base_url = started["url"] + "/v1"
        # Of simulated engines: what they say without a router is the truth.
        self.engine_urls = [url + "/v1" for url in started["engines"]]

    def ask(self, do, **more):
        return ask(do, world=self.number, **more)

    def script(self, **legs):
        """What engines say from now on."""
        self.ask("script", legs=legs)

    def legs(self, leg):
        return self.ask("legs", leg=leg)

    def until(self, end, least):
        """Waits until so many requests came to this end."""
        self.ask("until", counter=ENDS[end], least=least)

    def until_left(self, leg="decode"):
        """Waits until the router has closed its last leg of this kind, unfinished."""
        self.ask("left", leg=leg)

    def ends(self):
        """How many requests came to which end, once none is under way."""
        state = self.ask("rest")
        return {name: _number(state, pointer) for name, pointer in ENDS.items()}

    @contextlib.contextmanager
    def counts(self, **wanted):
        """The router counts these ends within the block, and no others."""
        before = self.ends()
        yield
        after = self.ends()
        grew = {name: after[name] - before[name] for name in ENDS if after[name] != before[name]}
        assert grew == wanted, f"counted {grew}, not {wanted}"


def _number(state, pointer):
    for name in pointer.strip("/").split("/"):
        state = state[name]
    return state


@contextlib.contextmanager
def raises(kind, **members):
    """The block raises exactly this kind of error, with these members; it is put into the list that the block is given."""
    caught = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
        assert type(error) is kind, repr(error)
        for name, want in members.items():
            got = getattr(error, name)
            assert got == want, f"{name} is {got!r}, not {want!r}: {error!r}"
        return
    raise AssertionError(f"no {kind.__name__}")


def run(names):
    """Runs the functions named test_…, plain and async ones, in the order in which they stand."""
    tests = {name: test for name, test in names.items() if name.startswith("test_")}
    failed = 0
    for name, test in tests.items():
        try:
            outcome = test()
            if inspect.iscoroutine(outcome):
                asyncio.run(outcome)
        except Exception:
            failed += 1
            print(f"{name} failed:", file=sys.stderr)
            traceback.print_exc()
    ask("done", tests=len(tests), failed=failed)
