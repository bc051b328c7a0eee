"""langchain-openai: python langchain-openai.py URL"""

import sys
from typing import Literal

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Animal(BaseModel):
    """An animal."""

    kind: Literal["cat", "dog"]
    wild: bool


@tool
def weather(city: Literal["Oslo", "Rome"]) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


model = ChatOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", model="demo", max_tokens=80, temperature=0)
assert model.invoke("Hello, how are you today?").content
assert "".join(str(part.content) for part in model.stream("Hello, how are you today?"))
for method in ("json_schema", "function_calling"):
    animal = model.with_structured_output(Animal, method=method).invoke("Name an animal.")
    assert animal.kind in ("cat", "dog"), method
answer = model.bind_tools([weather], tool_choice="any").invoke("What is the weather?")
(call,) = answer.tool_calls
assert weather.invoke(call["args"]).startswith("sunny")
print("served")
