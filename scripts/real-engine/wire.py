"""HTTP/1.1 over a plain socket, strict about framing, and what an OpenAI answer means.

`Client` speaks to a router or an engine alike. `meaning` reduces an answer, streamed or not, to the same few members,
so that a stream, an assembled answer and an engine's own answer can be compared.
"""
import json
import re
import socket
import struct
import time

HOST = "127.0.0.1"
C, X = "/v1/completions", "/v1/chat/completions"


class Broken(Exception):
    """The peer broke HTTP, the event stream's form or the shape of an answer."""


def need(ok, what):
    if not ok:
        raise Broken(what)


class Client:
    """One connection, kept alive between requests."""

    def __init__(self, port, timeout=180.0):
        self.sock = socket.create_connection((HOST, port), timeout=timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.sock.makefile("rb", 65536)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.file.close()
        self.sock.close()

    def reset(self):
        """Ends the connection with RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def send(self, method, path, body=None, headers=()):
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: narwhal.test"]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        lines += [f"{k}: {v}" for k, v in headers]
        self.sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + (body or b""))
        return self

    def line(self):
        line = self.file.readline(1 << 20)
        need(line.endswith(b"\r\n"), f"cut in a line: {line[:80]!r}")
        return line[:-2]

    def head(self):
        status = self.line()
        need(re.fullmatch(rb"HTTP/1\.1 \d{3} .*", status), f"status line {status[:80]!r}")
        headers = {}
        while True:
            line = self.line()
            if not line:
                break
            name, _, value = line.partition(b":")
            headers[name.decode().lower()] = value.strip().decode("latin-1")
        return int(status[9:12]), headers

    def exactly(self, n):
        data = self.file.read(n)
        need(len(data) == n, f"cut in a body: {len(data)} of {n} bytes")
        return data

    def pieces(self, headers):
        """The body's pieces as they come; ends only when the framing says so."""
        if headers.get("transfer-encoding", "") == "chunked":
            while True:
                size = int(self.line(), 16)
                data = self.exactly(size)
                need(self.exactly(2) == b"\r\n", "no line end after a chunk")
                if size == 0:
                    return
                yield data
        else:
            need("content-length" in headers, "neither length nor chunked")
            yield self.exactly(int(headers["content-length"]))

    def answer(self):
        status, headers = self.head()
        got = [(time.monotonic(), piece) for piece in self.pieces(headers)]
        return Answer(status, headers, b"".join(p for _, p in got), got)

    def ask(self, method, path, body=None, headers=()):
        return self.send(method, path, body, headers).answer()


class Answer:
    """A whole answer. `pieces` are (time, bytes), one a chunk."""

    def __init__(self, status, headers, body, pieces):
        self.status, self.headers, self.body, self.pieces = status, headers, body, pieces

    @property
    def is_stream(self):
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def json(self):
        return json.loads(self.body)

    def error(self):
        return self.json()["error"]

    def lines(self):
        """Payloads of the data lines: each an event of its own, and nothing else in the stream."""
        need(self.is_stream, f"not a stream but {self.status} {self.body[:300]!r}")
        blocks = self.body.split(b"\n\n")
        need(blocks.pop() == b"", "the stream ends inside an event")
        for block in blocks:
            need(block.startswith(b"data: ") and b"\n" not in block, f"not one data line: {block[:80]!r}")
        return [block[6:] for block in blocks]

    def events(self):
        """Parsed events of a stream that ended with `[DONE]`."""
        lines = self.lines()
        need(lines and lines[-1] == b"[DONE]", f"no [DONE] at the end but {lines[-1:]!r}")
        need(b"[DONE]" not in lines[:-1], "[DONE] before the end")
        events = [json.loads(line) for line in lines[:-1]]
        for event in events:
            need("error" not in event, f"an error in the stream: {event}")
        return events


def ask(port, path, body, method="POST", headers=()):
    with Client(port) as client:
        return client.ask(method, path, body, headers)


def fetch(port, path):
    return ask(port, path, None, "GET")


def metrics(port):
    """Values of an engine's or a router's metrics, summed over labels."""
    out = {}
    for line in fetch(port, "/metrics").body.decode().splitlines():
        if line and line[0] != "#":
            name, value = line.rsplit(" ", 1)
            name = name.split("{", 1)[0]
            out[name] = out.get(name, 0.0) + float(value)
    return out


def meaning(answer):
    """What an answer of status 200 says, streamed or not."""
    need(answer.status == 200, f"status {answer.status}: {answer.body[:400]!r}")
    return of_events(answer.events()) if answer.is_stream else of_full(answer.json())


def blank():
    return {"text": "", "reasoning": "", "calls": [], "finish_reason": None, "stop_reason": None, "logprobs": None,
            "token_ids": None, "prompt_token_ids": None, "usage": None, "model": None}


def counts(usage):
    return usage and tuple(usage[k] for k in ("prompt_tokens", "completion_tokens", "total_tokens"))


def of_full(full):
    out = blank()
    need(full["object"] in ("chat.completion", "text_completion"), f"object {full['object']}")
    need(len(full["choices"]) == 1 and full["choices"][0]["index"] == 0, "not one choice")
    choice = full["choices"][0]
    message = choice.get("message") or {"content": choice.get("text")}
    out["text"] = message.get("content") or ""
    out["reasoning"] = message.get("reasoning") or ""
    for call in message.get("tool_calls") or []:
        need(call["id"] and call["type"] == "function", f"call {call}")
        out["calls"].append((call["function"]["name"], call["function"]["arguments"]))
    for name in ("finish_reason", "stop_reason", "logprobs", "token_ids"):
        out[name] = choice.get(name)
    out["prompt_token_ids"] = choice.get("prompt_token_ids") or full.get("prompt_token_ids")
    out["usage"], out["model"] = counts(full.get("usage")), full["model"]
    return out


def append_logprobs(old, new):
    if new is None:
        return old
    old = old or {}
    for name, value in new.items():
        if isinstance(value, list):
            old[name] = (old.get(name) or []) + value
        else:
            old.setdefault(name, value)
    return old


def of_events(events):
    out = blank()
    calls, shared, roles, finished = {}, None, 0, False
    for event in events:
        need(event["object"] in ("chat.completion.chunk", "text_completion"), f"object {event['object']}")
        same = (event["id"], event["created"], event["model"])
        need(shared in (None, same), f"{shared} became {same}")
        shared = same
        out["prompt_token_ids"] = out["prompt_token_ids"] or event.get("prompt_token_ids")
        out["usage"] = counts(event.get("usage")) or out["usage"]
        need(len(event["choices"]) <= 1, "more than one choice")
        for choice in event["choices"]:
            need(not finished, "output after the finish reason")
            need(choice["index"] == 0, "another choice")
            delta = choice.get("delta") or {"content": choice.get("text")}
            roles += "role" in delta
            out["text"] += delta.get("content") or ""
            out["reasoning"] += delta.get("reasoning") or ""
            for part in delta.get("tool_calls") or []:
                call = calls.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
                function = part.get("function") or {}
                call["id"] += part.get("id") or ""
                call["name"] += function.get("name") or ""
                call["arguments"] += function.get("arguments") or ""
            finished = choice.get("finish_reason") is not None
            out["finish_reason"] = choice.get("finish_reason") or out["finish_reason"]
            if choice.get("stop_reason") is not None:
                out["stop_reason"] = choice["stop_reason"]
            out["logprobs"] = append_logprobs(out["logprobs"], choice.get("logprobs"))
            out["prompt_token_ids"] = out["prompt_token_ids"] or choice.get("prompt_token_ids")
            if choice.get("token_ids") is not None:
                out["token_ids"] = (out["token_ids"] or []) + choice["token_ids"]
    need(shared is not None and finished, "no finish reason")
    need(roles == (1 if "chat" in events[0]["object"] else 0), f"{roles} role events")
    need(all(c["id"] and c["name"] for c in calls.values()), f"calls {calls}")
    out["calls"] = [(calls[i]["name"], calls[i]["arguments"]) for i in sorted(calls)]
    out["model"] = shared[2]
    return out


def difference(a, b, at=""):
    """Where two values differ, or None. Floats are logprobs of a bfloat16 model, computed in batches of another size."""
    if isinstance(a, float) and isinstance(b, float):
        return None if abs(a - b) <= 0.05 + 0.02 * abs(b) else f"{at}: {a} and {b}"
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return next(filter(None, (difference(a[k], b[k], f"{at}/{k}") for k in a)), None)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        return next(filter(None, (difference(x, y, f"{at}/{i}") for i, (x, y) in enumerate(zip(a, b)))), None)
    return None if a == b else f"{at}: {a!r:.400} and {b!r:.400}"


def same(got, want, but=()):
    for name in want:
        if name not in but:
            what = difference(got[name], want[name], name)
            need(what is None, what)
