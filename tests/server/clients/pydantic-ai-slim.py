"""pydantic-ai: python pydantic-ai-slim.py URL"""

import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Animal(BaseModel):
    """An animal."""

    kind: Literal["cat", "dog"]
    wild: bool


model = OpenAIChatModel("demo", provider=OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none"))
usual = {"max_tokens": 80, "temperature": 0.0}
assert Agent(model, model_settings=usual).run_sync("Hello, how are you today?").output
for kind in (NativeOutput, ToolOutput):
    animal = Agent(model, output_type=kind(Animal), model_settings=usual).run_sync("Name an animal.").output
    assert animal.kind in ("cat", "dog"), kind
print("served")
