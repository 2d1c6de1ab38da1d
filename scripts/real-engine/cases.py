"""What is asked: the model's scripted conversations, requests that use one feature each, and requests that are refused."""
import scripted
from wire import C, X

MODEL = "tiny"
ONCE = "Once upon a time"
WORDS = scripted.STORY.split()
SYSTEM = {"role": "system", "content": "You are a helpful router."}
TOOLS = scripted.TOOLS
NO_THINK = {"chat_template_kwargs": {"enable_thinking": False}}
# About 1,700 tokens of the 2,048 that the model takes.
LONG = 10 * (" ".join(WORDS[:80]) + " ")


def comp(prompt, **more):
    return {"model": MODEL, "prompt": prompt, "temperature": 0, **more}


def chat(text, **more):
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0, **more}


USAGE = {"stream": True, "stream_options": {"include_usage": True}}
# A long answer: about three seconds alone.
ENDLESS = comp(ONCE, max_tokens=1900, ignore_eos=True)


def bare(message):
    """A message of a scripted conversation as a client would send it."""
    calls = [{"id": f"call_{n}", **call} for n, call in enumerate(message.get("tool_calls") or [])]
    return {"role": message["role"], "content": message["content"]} | ({"tool_calls": calls} if calls else {}) | (
        {"tool_call_id": message["tool_call_id"]} if "tool_call_id" in message else {})


def conversations():
    """(name, body, reply): each scripted conversation with and without system message, reasoning on and off."""
    for number, (messages, reply, tools) in enumerate(scripted.CASES):
        for system in (False, True):
            for think in (True, False):
                body = {"model": MODEL, "temperature": 0, "messages": [SYSTEM] * system + [bare(m) for m in messages]}
                if tools:
                    body["tools"] = TOOLS
                if not think:
                    body.update(NO_THINK)
                    reply = {**reply, "reasoning": None}
                name = f"{number} {messages[-1]['content'][:40]!r}" + " tools" * tools + " system" * system + " think" * think
                yield name, body, dict(reply, reasoning=scripted.CASES[number][1]["reasoning"] if think else None)


def features(ids, unicode_ids):
    """(name, path, body). `ids`: tokens of ONCE; `unicode_ids`: a prompt whose answer has characters of several tokens."""
    def named(tool):
        return {"type": "function", "function": {"name": tool}}

    paris = "What is the weather in Paris?"
    both = "Compare the weather in Paris and Tokyo."
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
              "required": ["ok", "n"], "additionalProperties": False}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return [
        ("completion", C, comp(ONCE)),
        ("one token", C, comp(ONCE, max_tokens=1)),
        ("to the end of sequence", C, comp(ONCE, max_tokens=400)),
        ("end of sequence at once", C, comp(scripted.STORY, max_tokens=8)),
        ("token array", C, comp(ids, max_tokens=40)),
        ("token array in an array", C, comp([ids], max_tokens=40)),
        ("one prompt in an array", C, comp([ONCE], max_tokens=40)),
        ("token ids asked", C, comp(ONCE, max_tokens=40, return_token_ids=True)),
        ("token ids asked, token array", C, comp(ids, max_tokens=40, return_token_ids=True)),
        ("token ids declined", C, comp(ONCE, max_tokens=40, return_token_ids=False)),
        ("logprobs 3", C, comp(ONCE, max_tokens=20, logprobs=3)),
        ("logprobs 0", C, comp(ONCE, max_tokens=20, logprobs=0)),
        ("tokens as ids", C, comp(ONCE, max_tokens=8, logprobs=1, return_tokens_as_token_ids=True)),
        ("masked logprobs", C, comp(ONCE, max_tokens=2, logprobs=2, allowed_token_ids=[300, 301])),
        ("echo", C, comp(ONCE, max_tokens=8, echo=True)),
        ("stop string", C, comp(ONCE, max_tokens=100, stop=["router"])),
        ("stop string kept", C, comp(ONCE, max_tokens=100, stop="router", include_stop_str_in_output=True)),
        ("stop token", C, comp(ids, max_tokens=100, stop_token_ids=[ids[-1]], min_tokens=2)),
        ("past the end of sequence", C, comp("the end of the story.", max_tokens=30, ignore_eos=True, return_token_ids=True)),
        ("special tokens kept", C, comp("the end of the story.", max_tokens=8, skip_special_tokens=False)),
        ("min tokens", C, comp("That is the end of the story.", max_tokens=12, min_tokens=6)),
        ("regex", C, comp(ONCE, max_tokens=12, structured_outputs={"regex": "[0-9]{4}-[0-9]{2}"})),
        ("unknown field", C, comp(ONCE, max_tokens=4, no_such_field={"a": [1, 2.50, "\u00e9"]})),
        ("stream interval", C, comp(ONCE, max_tokens=24, stream_interval=4, return_token_ids=True)),
        ("several blocks of prompt", C, comp("ten: " + " ".join(WORDS[:80]), max_tokens=24)),
        ("long prompt", C, comp(LONG, max_tokens=24)),
        ("unicode", C, comp(unicode_ids, max_tokens=120)),
        ("unicode, token ids asked", C, comp(unicode_ids, max_tokens=120, return_token_ids=True)),
        ("unicode cut inside a character", C, comp(unicode_ids, max_tokens=14, return_token_ids=True)),
        ("chat, one token", X, chat("Say hello.", max_tokens=1)),
        ("chat, both limits", X, chat("Say hello.", max_completion_tokens=5, max_tokens=3)),
        ("chat, token ids asked", X, chat("Say hello.", return_token_ids=True)),
        ("chat, token ids asked, no reasoning", X, chat("Show me Unicode.", return_token_ids=True, **NO_THINK)),
        ("chat, logprobs 2", X, chat("Say hello.", logprobs=True, top_logprobs=2)),
        ("chat, logprobs", X, chat("Say hello.", max_tokens=12, logprobs=True)),
        ("chat, stop string", X, chat("Tell me a story.", stop=["engines"], **NO_THINK)),
        ("chat, parts", X, {"model": MODEL, "temperature": 0, "messages": [SYSTEM, {"role": "user", "content": [
            {"type": "text", "text": "Say hello."}]}]}),
        ("chat, schema", X, chat("Say hello.", max_tokens=60, response_format=schema, **NO_THINK)),
        ("tools none", X, chat(paris, tools=TOOLS, tool_choice="none")),
        ("tools required", X, chat(paris, tools=TOOLS, tool_choice="required", max_tokens=200)),
        ("tools named", X, chat(paris, tools=TOOLS, tool_choice=named("get_time"), max_tokens=200)),
        ("tools parallel", X, chat(both, tools=TOOLS)),
        ("tools not parallel", X, chat(both, tools=TOOLS, parallel_tool_calls=False)),
        ("tools, token ids asked", X, chat(paris, tools=TOOLS, return_token_ids=True)),
        ("tools, stream interval", X, chat("What time is it in Rome?", tools=TOOLS, stream_interval=400)),
        ("tools, call cut", X, chat(paris, tools=TOOLS, max_tokens=24)),
    ]


# The engine drops the prompt's text from an echo when it is asked for token ids, and a leg always asks: what is right for
# these is what the engine says with `return_token_ids`.
WITH_IDS = {"echo"}

# Where an engine's answer without `stream` is not what its own stream says: that text is not compared.
STREAM_DIFFERS = {
    # The line breaks before a call are text in a stream, and a cut call is text only without one.
    "tools parallel", "tools not parallel", "tools, token ids asked", "tools, call cut", "tools, stream interval",
}


def refused_by_engines():
    """(name, path, body): status and message are those the engine gives when asked itself."""
    return [
        ("prompt too long", C, comp(2 * LONG, max_tokens=4)),
        ("prompt too long, streamed", C, comp(2 * LONG, max_tokens=4, stream=True)),
        ("chat too long", X, chat(2 * LONG, max_tokens=4)),
        ("chat too long, streamed", X, chat(2 * LONG, stream=True)),
        ("temperature", C, comp(ONCE) | {"temperature": -1}),
        ("temperature, streamed", C, comp(ONCE, stream=True) | {"temperature": -1}),
        ("chat temperature", X, chat("Say hello.") | {"temperature": 99}),
        ("chat max_tokens too large", X, chat("Say hello.", max_tokens=100000)),
        ("chat max_tokens too large, streamed", X, chat("Say hello.", max_tokens=100000, stream=True)),
        ("logprobs too many", C, comp(ONCE, logprobs=999, max_tokens=2)),
        ("stop of a wrong type", C, comp(ONCE, stop=[1, {"x": 2}], max_tokens=2)),
        ("regex broken", C, comp(ONCE, structured_outputs={"regex": "(["}, max_tokens=2)),
        ("token id out of range", C, comp([1, 999999], max_tokens=2)),
        ("top_logprobs alone", X, chat("Say hello.", top_logprobs=2)),
        ("tool choice without tools", X, chat("Say hello.", tool_choice="required")),
        ("unknown named tool", X, chat("Say hello.", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "nope"}})),
        ("prompt_logprobs, streamed", C, comp(ONCE, prompt_logprobs=1, max_tokens=2, stream=True)),
        ("prompt empty", C, comp("", max_tokens=2)),
        # What /tokenize refuses already is refused with its words.
        ("a call without id", X, {"model": MODEL, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [
            {"type": "function", "function": {"name": "x", "arguments": "{}"}}]}]}),
        ("content of a wrong type", X, {"model": MODEL, "messages": [{"role": "user", "content": 7}]}),
    ]


def refused_by_router():
    """(name, path, body or bytes, status, param, code): never reach an engine."""
    xargs = {"kv_transfer_params": {"do_remote_prefill": True}}
    return [
        ("n 2", C, comp(ONCE, n=2), 400, None, None),
        ("n 2, streamed", X, chat("Say hello.", n=2, stream=True), 400, None, None),
        ("best_of 2", C, comp(ONCE, best_of=2), 400, None, None),
        ("n 0", C, comp(ONCE, n=0), 400, "n", None),
        ("two prompts", C, comp([ONCE, "The"]), 400, "prompt", None),
        ("two token prompts", C, comp([[1, 2], [3]]), 400, "prompt", None),
        ("two prompts, streamed", C, comp([ONCE, "The"], stream=True), 400, "prompt", None),
        ("parameters in vllm_xargs", C, comp(ONCE, vllm_xargs=xargs), 400, "vllm_xargs", None),
        ("prompt_logprobs", C, comp(ONCE, prompt_logprobs=1), 400, "prompt_logprobs", None),
        ("unknown model", X, chat("Say hello.") | {"model": "other"}, 404, None, "model_not_found"),
        ("cut JSON", C, b'{"model":"tiny","prompt":"x"', 400, None, None),
        ("NaN", C, b'{"model":"tiny","prompt":"x","temperature":NaN}', 400, None, None),
        ("max_tokens text", C, comp(ONCE, max_tokens="many"), 400, "max_tokens", None),
    ]


def smuggled():
    """(name, body bytes): a client's own transfer parameters; wrong block ids would end a real decode engine."""
    kv = b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"x","remote_block_ids":[[99999999]],' \
         b'"remote_request_id":"x","remote_host":"127.0.0.1","remote_port":9,"tp_size":1}'
    head = b'{"model":"tiny","prompt":"Once upon a time","temperature":0,"max_tokens":12,'
    rows = [
        ("plain", b'"kv_transfer_params":' + kv),
        ("escaped name", b'"kv_transfer\\u005fparams":' + kv),
        ("twice", b'"kv_transfer_params":null,"x":1,"kv_transfer_params":' + kv),
        ("twice, once escaped", b'"\\u006bv_transfer_params":' + kv + b',"kv_transfer_params":{}'),
        ("null", b'"kv_transfer_params":null'),
        ("ec_transfer_params", b'"ec_transfer_params":' + kv),
        ("a prefill leg's ask", b'"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}'),
    ]
    for name, member in rows:
        yield name, head + member + b"}"
        yield name + ", streamed", head + member + b',"stream":true}'
