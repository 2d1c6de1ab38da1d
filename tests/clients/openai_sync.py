"""The official OpenAI SDK for Python, its plain client."""

import concurrent.futures
import threading
import time

import openai
from stage import MODEL, PATIENCE_S, World, event, raises, recorded, run

SIMULATED = World(simulated=True)
PAIR = World()

USER = [{"role": "user", "content": "Say it."}]
HANG = {"hang": True}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("get_weather", "get_time")
]


def client(world, **options):
    options = {"max_retries": 0, "timeout": PATIENCE_S, **options}
    return openai.OpenAI(base_url=world.base_url, api_key="any", **options)


def engine():
    return openai.OpenAI(base_url=SIMULATED.engine_urls[0], api_key="any", max_retries=0, timeout=PATIENCE_S)


def chat(sdk, **more):
    return sdk.chat.completions.create(**{"model": MODEL, "messages": USER, "max_tokens": 40, **more})


def text(sdk, **more):
    return sdk.completions.create(**{"model": MODEL, "prompt": "Say it.", "max_tokens": 40, **more})


def said(chunks):
    """What a stream of chat says, its finish reason and its usage."""
    words, finish, usage = [], None, None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            assert finish is None, "a choice goes on behind its end"
            words.append(choice.delta.content or "")
            finish = choice.finish_reason
    return "".join(words), finish, usage


def test_models():
    with SIMULATED.counts():
        models = list(client(SIMULATED).models.list())
    assert [model.id for model in models] == [MODEL]
    assert models[0].object == "model"


def test_chat_is_what_the_engine_says():
    truth = chat(engine())
    assert len(truth.choices[0].message.content) > 40
    with SIMULATED.counts(served=2):
        whole = chat(client(SIMULATED))
        chunks = list(chat(client(SIMULATED), stream=True, stream_options={"include_usage": True}))
    assert whole.object == "chat.completion" and whole._request_id
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].message.content == truth.choices[0].message.content
    assert whole.choices[0].finish_reason == truth.choices[0].finish_reason == "length"
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    for name in counts:
        assert getattr(whole.usage, name) == getattr(truth.usage, name), name
    assert whole.usage.completion_tokens == 40
    content, finish, usage = said(chunks)
    assert (content, finish) == (truth.choices[0].message.content, "length")
    for name in counts:
        assert getattr(usage, name) == getattr(truth.usage, name), name
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert chunks[0].choices[0].delta.role == "assistant"


def test_usage_comes_only_when_asked_for():
    with SIMULATED.counts(served=1):
        _, finish, usage = said(chat(client(SIMULATED), stream=True))
    assert finish == "length" and usage is None


def test_completions_are_what_the_engine_says():
    truth = text(engine())
    with SIMULATED.counts(served=2):
        whole = text(client(SIMULATED))
        chunks = list(text(client(SIMULATED), stream=True))
    assert whole.object == "text_completion"
    assert whole.choices[0].text == truth.choices[0].text
    assert whole.usage.completion_tokens == truth.usage.completion_tokens == 40
    assert "".join(chunk.choices[0].text for chunk in chunks) == truth.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_a_hundred_streams_at_once_are_each_complete_and_in_order():
    prompts = [f"Say number {n}." for n in range(100)]
    ask = lambda sdk, prompt, **more: chat(sdk, messages=[{"role": "user", "content": prompt}], **more)
    direct = engine()
    truths = [ask(direct, prompt).choices[0].message.content for prompt in prompts]
    assert len(set(truths)) == 100
    sdk = client(SIMULATED)
    with SIMULATED.counts(served=100), concurrent.futures.ThreadPoolExecutor(100) as pool:
        streams = list(pool.map(lambda prompt: said(ask(sdk, prompt, stream=True)), prompts))
    assert streams == [(truth, "length", None) for truth in truths]


def calls(message):
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or []]


def test_tool_calls_are_merged():
    rows = [
        ("chat_stream_tools_auto_call", "chat_tools_auto_call"),
        ("chat_stream_tools_auto_two_calls", "chat_tools_auto_two_calls"),
        ("chat_stream_tools_auto_text_and_call", "chat_tools_auto_text_and_call"),
        ("chat_stream_tools_named", "chat_tools_named"),
        ("chat_stream_tools_required", "chat_tools_required"),
    ]
    for stream, answer in rows:
        want = recorded(answer)["choices"][0]
        want_calls = [(c["function"]["name"], c["function"]["arguments"]) for c in want["message"]["tool_calls"]]
        PAIR.script(decode={"chunks": recorded(stream)})
        with PAIR.counts(served=2):
            with client(PAIR).chat.completions.stream(model=MODEL, messages=USER, tools=TOOLS) as events:
                kinds = {each.type for each in events}
                merged = events.get_final_completion().choices[0]
            whole = chat(client(PAIR), tools=TOOLS).choices[0]
        assert want_calls and calls(merged.message) == want_calls, f"{stream}: {merged}"
        assert "tool_calls.function.arguments.done" in kinds, f"{stream}: {kinds}"
        assert calls(whole.message) == want_calls, f"{stream}: {whole}"
        assert all(call.id and call.type == "function" for call in whole.message.tool_calls), stream
        assert whole.message.content == merged.message.content, stream
        assert whole.finish_reason == merged.finish_reason == want["finish_reason"], stream
        assert all(leg["body"]["tools"] == TOOLS for leg in PAIR.legs("decode")), stream


def test_logprobs():
    PAIR.script(decode={"chunks": recorded("chat_stream_logprobs")})
    with PAIR.counts(served=2):
        whole = chat(client(PAIR), logprobs=True, top_logprobs=2).choices[0].logprobs.content
        chunks = list(chat(client(PAIR), logprobs=True, top_logprobs=2, stream=True))
    tokens = [t for c in chunks for choice in c.choices if choice.logprobs for t in choice.logprobs.content]
    assert len(tokens) > 5 and whole == tokens
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in tokens)
    PAIR.script(decode={"chunks": recorded("completion_stream_logprobs")})
    with PAIR.counts(served=2):
        whole = text(client(PAIR), logprobs=2).choices[0]
        chunks = [chunk.choices[0] for chunk in text(client(PAIR), logprobs=2, stream=True)]
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        joined = [each for choice in chunks for each in getattr(choice.logprobs, name)]
        assert joined and getattr(whole.logprobs, name) == joined, name
    assert "".join(whole.logprobs.tokens) == whole.text


def test_faults_of_the_request():
    sdk = client(PAIR)
    PAIR.script()
    with PAIR.counts(invalid=4):
        with raises(openai.NotFoundError, status_code=404, code="model_not_found"):
            chat(sdk, model="another")
        for stream in (False, True):
            with raises(openai.BadRequestError, status_code=400, type="invalid_request_error"):
                chat(sdk, n=2, stream=stream)
        with raises(openai.BadRequestError, status_code=400, param="max_tokens"):
            chat(sdk, max_tokens="many")
    assert PAIR.legs("prefill") == []
    # What the engine refuses itself, in its own words.
    refusal = {"message": "the temperature is not for me", "type": "BadRequestError", "param": None, "code": 400}
    PAIR.script(prefill={"status": 400, "body": {"error": refusal}})
    with PAIR.counts(invalid=1):
        with raises(openai.BadRequestError, status_code=400) as caught:
            chat(sdk, temperature=9, stream=True)
    assert caught[0].body["message"] == refusal["message"], caught
    small = World(max_request_bytes=1024)
    with small.counts(invalid=1):
        with raises(openai.APIStatusError, status_code=413):
            chat(client(small), messages=[{"role": "user", "content": "x" * 2000}])


def test_faults_of_the_fleet():
    once = World(max_attempts=1)
    for stream in (False, True):
        for leg in ("prefill", "decode"):
            for status, answer in ((500, 502), (504, 504)):
                once.script(**{leg: {"status": status, "body": "secret"}})
                with once.counts(failed=1):
                    with raises(openai.InternalServerError, status_code=answer, type=leg, code=leg):
                        chat(client(once), stream=stream)
    headless = World(roles=["prefill"])
    with raises(openai.InternalServerError, status_code=503, code="backend_unavailable") as caught:
        chat(client(headless))
    assert caught[0].response.headers["retry-after"] == "1"


def test_an_error_after_output_is_raised_from_the_stream():
    broken = [[event("a"), event("b"), {"reset": True}], [event("a"), event("b"), {"close": True}]]
    broken.append([event("a"), event("b"), 'data: {"error":{"message":"secret","code":500}}\n\n', "data: [DONE]\n\n"])
    for chunks in broken:
        PAIR.script(decode={"chunks": chunks})
        words = []
        with PAIR.counts(failed=1):
            with raises(openai.APIError, type="decode", code="failed"):
                for chunk in chat(client(PAIR), stream=True):
                    words.append(chunk.choices[0].delta.content)
        assert words == ["a", "b"], words


def test_a_full_router_is_a_rate_limit():
    world = World(max_connections=1)
    world.script(decode={"chunks": [event("a"), HANG]})
    sdk = client(world)
    with world.counts(rejected=2, cancelled=1):
        holder = chat(sdk, stream=True)
        assert next(iter(holder)).choices[0].delta.content == "a"
        for stream in (False, True):
            with raises(openai.RateLimitError, status_code=429, type="server_overloaded_error") as caught:
                chat(sdk, stream=stream)
            assert caught[0].response.headers["retry-after"] == "1"
        holder.close()
        world.until_left()


def test_retry_after_is_waited_for():
    world = World(max_connections=1)
    for stream in (False, True):
        world.script(decode=[{"chunks": [event("a"), HANG]}, {"default": True}])
        before = world.ends()
        holder = chat(client(world), stream=True)
        assert next(iter(holder)).choices[0].delta.content == "a"

        def let_go():
            world.until("rejected", before["rejected"] + 1)
            holder.close()

        releaser = threading.Thread(target=let_go)
        releaser.start()
        started = time.monotonic()
        answer = chat(client(world, max_retries=5), stream=stream)
        words = said(answer)[0] if stream else answer.choices[0].message.content
        took = time.monotonic() - started
        releaser.join()
        assert words == " w7" * 40, words
        after = world.ends()
        grew = {name: after[name] - before[name] for name in after}
        # Each refusal is a request of its own, and costs a second at least.
        assert grew["rejected"] >= 1 and grew["served"] == 1 and grew["cancelled"] == 1, grew
        assert took >= grew["rejected"], f"{took} s for {grew}"


def test_leaving_a_stream_closes_its_leg():
    sdk = client(PAIR)
    PAIR.script(decode={"chunks": [event("a"), event("b"), HANG]})
    with PAIR.counts(cancelled=1):
        with chat(sdk, stream=True) as stream:
            for chunk in stream:
                break
        PAIR.until_left()
    with PAIR.counts(cancelled=1):
        stream = chat(sdk, stream=True)
        assert [next(stream).choices[0].delta.content for _ in range(2)] == ["a", "b"]
        stream.close()
        PAIR.until_left()


def test_a_client_that_waits_no_longer_closes_its_leg():
    for leg in ("prefill", "decode"):
        PAIR.script(**{leg: {"raw": [HANG]}})
        with PAIR.counts(cancelled=1):
            with raises(openai.APITimeoutError):
                chat(client(PAIR, timeout=0.5))
            PAIR.until_left(leg)


run(globals())
