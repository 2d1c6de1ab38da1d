"""LangChain's client of OpenAI's chat."""

from langchain_core.messages import AIMessageChunk
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from stage import MODEL, PATIENCE_S, World, recorded, run

SIMULATED = World(simulated=True)
PAIR = World()


def model(base_url, **more):
    return ChatOpenAI(
        model=MODEL, base_url=base_url, api_key="any", max_retries=0, timeout=PATIENCE_S, max_tokens=40, **more
    )


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return city


def test_answers_are_what_the_engine_says():
    truth = model(SIMULATED.engine_urls[0]).invoke("Say it.")
    assert len(truth.content) > 40
    with SIMULATED.counts(served=2):
        whole = model(SIMULATED.base_url).invoke("Say it.")
        chunks = list(model(SIMULATED.base_url, stream_usage=True).stream("Say it."))
    assert whole.content == truth.content
    assert whole.response_metadata["finish_reason"] == "length"
    assert whole.usage_metadata["output_tokens"] == truth.usage_metadata["output_tokens"] == 40
    assert whole.usage_metadata["input_tokens"] == truth.usage_metadata["input_tokens"]
    assert len(chunks) > 30 and "".join(chunk.content for chunk in chunks) == truth.content
    merged = sum(chunks[1:], chunks[0])
    assert isinstance(merged, AIMessageChunk)
    assert merged.usage_metadata["output_tokens"] == 40


def test_tool_calls_are_merged():
    want = recorded("chat_tools_auto_two_calls")["choices"][0]["message"]["tool_calls"]
    want = [call["function"]["name"] for call in want]
    PAIR.script(decode={"chunks": recorded("chat_stream_tools_auto_two_calls")})
    bound = model(PAIR.base_url).bind_tools([get_weather])
    with PAIR.counts(served=2):
        whole = bound.invoke("How is it?")
        chunks = list(bound.stream("How is it?"))
    merged = sum(chunks[1:], chunks[0])
    assert [call["name"] for call in whole.tool_calls] == want
    assert [(c["name"], c["args"]) for c in merged.tool_calls] == [(c["name"], c["args"]) for c in whole.tool_calls]
    assert whole.tool_calls[0]["args"]


run(globals())
