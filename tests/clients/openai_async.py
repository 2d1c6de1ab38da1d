"""The official OpenAI SDK for Python, its async client."""

import asyncio
import time

import openai
from stage import MODEL, PATIENCE_S, World, event, raises, run

SIMULATED = World(simulated=True)
PAIR = World()

HANG = {"hang": True}


def client(world, **options):
    options = {"max_retries": 0, "timeout": PATIENCE_S, **options}
    return openai.AsyncOpenAI(base_url=world.base_url, api_key="any", **options)


def engine():
    url = SIMULATED.engine_urls[0]
    return openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0, timeout=PATIENCE_S)


def chat(sdk, prompt="Say it.", **more):
    messages = [{"role": "user", "content": prompt}]
    return sdk.chat.completions.create(**{"model": MODEL, "messages": messages, "max_tokens": 40, **more})


async def said(asked):
    """What a stream of chat says, and its finish reason."""
    words, finish = [], None
    async for chunk in await asked:
        for choice in chunk.choices:
            assert finish is None, "a choice goes on behind its end"
            words.append(choice.delta.content or "")
            finish = choice.finish_reason
    return "".join(words), finish


async def in_thread(call, *args, **more):
    return await asyncio.to_thread(call, *args, **more)


async def test_answers_are_what_the_engine_says():
    async with engine() as direct, client(SIMULATED) as sdk:
        truth = (await chat(direct)).choices[0].message.content
        with SIMULATED.counts(served=4):
            assert (await chat(sdk)).choices[0].message.content == truth
            assert await said(chat(sdk, stream=True)) == (truth, "length")
            ask = {"model": MODEL, "prompt": "Say it.", "max_tokens": 40}
            whole = await sdk.completions.create(**ask)
            parts = [chunk.choices[0].text async for chunk in await sdk.completions.create(**ask, stream=True)]
            assert whole.usage.completion_tokens == 40
            assert "".join(parts) == whole.choices[0].text
        assert [model.id async for model in sdk.models.list()] == [MODEL]


async def test_a_hundred_streams_at_once_are_each_complete_and_in_order():
    prompts = [f"Say number {n}." for n in range(100)]
    async with engine() as direct, client(SIMULATED) as sdk:
        truths = [(await chat(direct, prompt)).choices[0].message.content for prompt in prompts]
        assert len(set(truths)) == 100
        with SIMULATED.counts(served=100):
            streams = await asyncio.gather(*(said(chat(sdk, prompt, stream=True)) for prompt in prompts))
    assert streams == [(truth, "length") for truth in truths]


async def test_errors_have_their_types():
    async with client(PAIR) as sdk:
        with PAIR.counts(invalid=2):
            with raises(openai.NotFoundError, status_code=404, code="model_not_found"):
                await chat(sdk, model="another")
            with raises(openai.BadRequestError, status_code=400):
                await chat(sdk, n=2)
        # The only engine of its kind fails, and none is left to try.
        PAIR.script(prefill={"status": 500, "body": "secret"})
        with PAIR.counts(failed=1):
            with raises(openai.InternalServerError, status_code=503, code="backend_unavailable"):
                await chat(sdk)
        PAIR.script(decode={"chunks": [event("a"), {"reset": True}]})
        with PAIR.counts(failed=1):
            with raises(openai.APIError, type="decode", code="failed"):
                await said(chat(sdk, stream=True))


async def test_retry_after_is_waited_for():
    world = World(max_connections=1)
    world.script(decode=[{"chunks": [event("a"), HANG]}, {"default": True}])
    async with client(world) as holding, client(world, max_retries=5) as sdk:
        holder = await chat(holding, stream=True)
        async for _ in holder:
            break

        async def let_go():
            await in_thread(world.until, "rejected", 1)
            await holder.close()

        started = time.monotonic()
        answer, _ = await asyncio.gather(chat(sdk), let_go())
        took = time.monotonic() - started
    assert answer.choices[0].message.content == " w7" * 40
    ends = world.ends()
    assert ends["rejected"] >= 1 and ends["served"] == 1, ends
    assert took >= ends["rejected"], f"{took} s for {ends}"


async def test_leaving_closes_the_leg():
    async with client(PAIR) as sdk:
        PAIR.script(decode={"chunks": [event("a"), event("b"), HANG]})
        with PAIR.counts(cancelled=1):
            async with await chat(sdk, stream=True) as stream:
                async for _ in stream:
                    break
            await in_thread(PAIR.until_left)
        # A task that is cancelled while it waits for a whole answer.
        PAIR.script(decode={"raw": [HANG]})
        with PAIR.counts(cancelled=1):
            task = asyncio.create_task(chat(sdk))
            while not await in_thread(PAIR.legs, "decode"):
                pass
            task.cancel()
            with raises(asyncio.CancelledError):
                await task
            await in_thread(PAIR.until_left)


run(globals())
