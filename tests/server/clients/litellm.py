"""litellm over OpenAI's, Anthropic's and Ollama's API: python litellm.py URL"""

import json
import sys

# This file is called as the library is.
sys.path = [path for path in sys.path if not path.endswith("clients")]

import litellm  # noqa: E402

URL = sys.argv[1]
ASKED = [{"role": "user", "content": "Hello, how are you today?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]},
    },
}
for given in (
    {"model": "openai/demo", "api_base": f"{URL}/v1", "api_key": "none"},
    {"model": "anthropic/demo", "api_base": URL, "api_key": "none"},
    {"model": "ollama_chat/demo", "api_base": URL},
):
    got = litellm.completion(messages=ASKED, max_tokens=8, **given)
    assert got.choices[0].message.content and got.usage.completion_tokens, given
    parts = list(litellm.completion(messages=ASKED, max_tokens=8, stream=True, **given))
    assert "".join(part.choices[0].delta.content or "" for part in parts), given

openai = {"model": "openai/demo", "api_base": f"{URL}/v1", "api_key": "none"}
got = litellm.completion(messages=ASKED, tools=[TOOL], tool_choice="required", max_tokens=60, **openai)
(call,) = got.choices[0].message.tool_calls
assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}, "strict": True}}
got = litellm.completion(messages=ASKED, response_format=form, max_tokens=20, **openai)
assert json.loads(got.choices[0].message.content) in ("yes", "no")
rows = litellm.embedding(model="openai/demo", input=["a", "b"], api_base=f"{URL}/v1", api_key="none")
assert len(rows.data) == 2
print("served")
