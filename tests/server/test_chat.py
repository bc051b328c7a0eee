"""Chat completions through the official client."""

from __future__ import annotations

import json
import math

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.server.running import CHAT, HELLO, MODEL, lines_of

pytestmark = pytest.mark.server


def test_an_answer_and_its_figures(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=24, temperature=0)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.object == "chat.completion" and answer.model == MODEL and answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    timings = answer.model_extra["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == answer.usage.prompt_tokens
    assert timings["predicted_n"] == answer.usage.completion_tokens
    assert timings["draft_n"] >= timings["draft_n_accepted"] >= 0


def test_a_stream_says_the_same(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 40, "seed": 5, "temperature": 0.9}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    ends = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert ends == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({c.id for c in chunks}) == 1


def test_a_stream_without_usage_has_none_and_ends_with_done(http: httpx.Client) -> None:
    body = {"messages": HELLO, "max_tokens": 8, "stream": True}
    got = http.post("/v1/chat/completions", json=body)
    assert got.text.endswith("data: [DONE]\n\n")
    lines = [json.loads(line[6:]) for line in lines_of(got) if line.startswith("data: {")]
    assert all("usage" not in line for line in lines)
    assert lines[-1]["timings"]["predicted_n"] <= 8


def test_a_seed_fixes_the_text_and_another_changes_it(client: openai.OpenAI) -> None:
    def say(seed: int) -> str:
        got = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=48, seed=seed, temperature=1.2)
        return got.choices[0].message.content or ""

    assert say(3) == say(3)
    assert len({say(seed) for seed in (3, 4, 5, 6)}) > 1


def test_the_seed_is_reported_when_none_was_given(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=24, temperature=1.2)
    seed = first.model_extra["timings"]["seed"]
    again = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=24, temperature=1.2, seed=seed)
    assert again.choices[0].message.content == first.choices[0].message.content


def test_several_texts_with_seeds_counted_up(client: openai.OpenAI) -> None:
    # Beside others a step is wider, and wide ones round differently: only exact texts are always those of one alone.
    spec = {"extra_body": {"speculation": {"exact": True}}}
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 16, "temperature": 1.2, **spec}
    three = client.chat.completions.create(**asked, n=3, seed=10)
    assert [c.index for c in three.choices] == [0, 1, 2]
    alone = [client.chat.completions.create(**asked, seed=10 + i).choices[0].message.content for i in range(3)]
    assert [c.message.content for c in three.choices] == alone
    assert three.usage is not None
    assert three.usage.prompt_tokens < 3 * 10  # counted once


def test_several_texts_in_one_stream(client: openai.OpenAI) -> None:
    spec = {"extra_body": {"speculation": {"exact": True}}}
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 16, "temperature": 1.2, "n": 2, "seed": 1, **spec}
    whole = client.chat.completions.create(**asked)
    texts = ["", ""]
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [c.message.content for c in whole.choices]


def test_stop_strings_end_the_text(client: openai.OpenAI) -> None:
    full = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=32, temperature=0)
    text = full.choices[0].message.content or ""
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    cut = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=32, temperature=0, stop=[stop])
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_the_token_limit_under_both_names(client: openai.OpenAI) -> None:
    for limit in ({"max_tokens": 3}, {"max_completion_tokens": 3}):
        got = client.chat.completions.create(
            model=MODEL, messages=HELLO, temperature=0, extra_body={"ignore_eos": True}, **limit
        )
        assert got.usage is not None and got.usage.completion_tokens == 3
        assert got.choices[0].finish_reason == "length"


def test_running_out_of_context_ends_with_length(client: openai.OpenAI) -> None:
    got = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, extra_body={"ignore_eos": True})
    assert got.choices[0].finish_reason == "length"
    assert got.usage is not None and got.usage.total_tokens == 512


def test_a_conversation_with_system_and_tool_roles_and_parts(client: openai.OpenAI) -> None:
    got = client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": " there"}]},
            {"role": "assistant", "content": None, "tool_calls": [_call("look", '{"at": 1}')]},
            {"role": "tool", "tool_call_id": "c1", "content": "nothing"},
            {"role": "user", "content": CHAT},
        ],
        max_tokens=8,
    )
    assert got.choices[0].finish_reason in ("stop", "length")


def _call(name: str, arguments: str) -> dict[str, object]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_logprobs_of_every_token(client: openai.OpenAI) -> None:
    got = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=24, temperature=0, logprobs=True, top_logprobs=5
    )
    assert got.usage is not None and got.choices[0].logprobs is not None
    content = got.choices[0].logprobs.content or []
    assert len(content) == got.usage.completion_tokens
    joined = b"".join(bytes(item.bytes or []) for item in content).decode("utf-8", "replace")
    assert joined == got.choices[0].message.content
    for item in content:
        values = [top.logprob for top in item.top_logprobs]
        assert len(values) == 5 and values == sorted(values, reverse=True) and values[0] <= 0
        # Greedy: what was chosen is the most probable.
        assert item.logprob == pytest.approx(values[0])
        assert sum(math.exp(v) for v in values) <= 1 + 1e-6


@pytest.mark.parametrize("drafters", ["ngram", "model", "auto"])
def test_drafted_tokens_have_the_log_probabilities_of_plain_decoding(client: openai.OpenAI, drafters: str) -> None:
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 80, "temperature": 0, "logprobs": True, "top_logprobs": 3}

    def say(**speculation: object) -> ChatCompletion:
        body = {"ignore_eos": True, "speculation": {"exact": True, **speculation}}
        return client.chat.completions.create(**asked, extra_body=body)  # type: ignore[call-overload,no-any-return]

    plain, fast = say(off=True), say(drafters=drafters)
    assert plain.model_extra and fast.model_extra and plain.model_extra["timings"]["draft_n"] == 0
    if drafters != "auto":
        assert fast.model_extra["timings"]["by_drafter"][drafters]["accepted"] > 0
    assert fast.choices[0].logprobs == plain.choices[0].logprobs


def test_streamed_logprobs_are_those_of_the_whole(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 24, "temperature": 0, "logprobs": True}
    spec = {"extra_body": {"speculation": {"exact": True}}}
    whole = client.chat.completions.create(**asked, **spec)
    items = [
        item
        for chunk in client.chat.completions.create(**asked, **spec, stream=True)
        if chunk.choices and chunk.choices[0].logprobs
        for item in chunk.choices[0].logprobs.content or []
    ]
    assert whole.choices[0].logprobs is not None
    assert items == whole.choices[0].logprobs.content


@pytest.mark.parametrize("as_parts", [False, True])
def test_a_prediction_is_drafted_from(client: openai.OpenAI, as_parts: bool) -> None:
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 40, "temperature": 0}
    plain = client.chat.completions.create(**asked, extra_body={"speculation": {"off": True}})
    text = plain.choices[0].message.content or ""
    content = [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}] if as_parts else text
    got = client.chat.completions.create(
        **asked,
        prediction={"type": "content", "content": content},  # type: ignore[arg-type]
        extra_body={"speculation": {"drafters": "prediction"}},
    )
    assert got.choices[0].message.content == text
    assert got.usage is not None and got.usage.completion_tokens_details is not None
    details = got.usage.completion_tokens_details
    assert details.accepted_prediction_tokens and details.accepted_prediction_tokens > 5
    assert details.rejected_prediction_tokens is not None


def test_a_wrong_prediction_changes_nothing_and_is_counted(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 24, "temperature": 0}
    plain = client.chat.completions.create(**asked, extra_body={"speculation": {"off": True}})
    got = client.chat.completions.create(
        **asked,
        prediction={"type": "content", "content": (plain.choices[0].message.content or "")[:12] + " 12345 67890"},
        extra_body={"speculation": {"drafters": "prediction"}},
    )
    assert got.choices[0].message.content == plain.choices[0].message.content
    assert got.usage is not None and got.usage.completion_tokens_details is not None
    assert got.usage.completion_tokens_details.rejected_prediction_tokens


SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "large"]}, "hot": {"type": "boolean"}},
    "required": ["size", "hot"],
    "additionalProperties": False,
}


def test_a_json_schema_holds(client: openai.OpenAI) -> None:
    for seed in range(3):
        got = client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            seed=seed,
            max_tokens=60,
            response_format={"type": "json_schema", "json_schema": {"name": "order", "schema": SCHEMA, "strict": True}},
        )
        data = json.loads(got.choices[0].message.content or "")
        assert set(data) == {"size", "hot"} and data["size"] in ("small", "large") and isinstance(data["hot"], bool)


def test_a_json_object_begins_as_one(client: openai.OpenAI) -> None:
    got = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=40, seed=1, response_format={"type": "json_object"}
    )
    text = got.choices[0].message.content or ""
    assert text.lstrip().startswith("{")
    if got.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


def test_a_grammar_of_ones_own(client: openai.OpenAI) -> None:
    got = client.chat.completions.create(
        model=MODEL, messages=HELLO, extra_body={"grammar": 'root ::= "yes" | "no"'}, max_tokens=20
    )
    assert got.choices[0].message.content in ("yes", "no")


def test_a_logit_bias_forbids_and_forces(client: openai.OpenAI, http: httpx.Client) -> None:
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 6, "temperature": 0}
    token = http.post("/tokenize", json={"content": "?"}).json()["tokens"][-1]
    forced = client.chat.completions.create(**asked, logit_bias={str(token): 100})
    assert forced.choices[0].message.content == "??????"
    plain = client.chat.completions.create(**asked).choices[0].message.content or ""
    first = http.post("/tokenize", json={"content": plain}).json()["tokens"][0]
    banned = client.chat.completions.create(**asked, logit_bias={str(first): -100})
    assert banned.choices[0].message.content != plain


def test_the_second_request_reuses_the_first_ones_prompt(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Tell me about the weather in the north of the country, please."}]
    asked = {"model": MODEL, "messages": messages, "max_tokens": 4}
    client.chat.completions.create(**asked)  # type: ignore[arg-type]
    again = client.chat.completions.create(**asked)  # type: ignore[arg-type]
    assert again.usage is not None and again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1
