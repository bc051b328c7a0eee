"""instructor over the openai client: python instructor.py URL"""

import sys
from typing import Literal

# This file is called as the library is.
sys.path = [path for path in sys.path if not path.endswith("clients")]

import instructor  # noqa: E402
import openai  # noqa: E402
from pydantic import BaseModel  # noqa: E402


class Animal(BaseModel):
    """An animal."""

    kind: Literal["cat", "dog"]
    wild: bool


plain = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
    client = instructor.from_openai(plain, mode=mode)
    animal = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Name an animal."}],
        response_model=Animal,
        max_tokens=80,
        temperature=0,
        max_retries=0,
    )
    assert animal.kind in ("cat", "dog"), mode
print("served")
