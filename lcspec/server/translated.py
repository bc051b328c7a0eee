"""Endpoints of other APIs over the OpenAI ones: a body becomes theirs, and their answer is written anew.

So everything that is found in an answer (reasoning, tool calls) is found in one place.
"""

from __future__ import annotations

import json
from typing import Any, AsyncGenerator, AsyncIterator, Mapping, TypeVar

from fastapi.responses import Response
from pydantic import BaseModel, ValidationError

from lcspec.engine.events import Event, Finished, Started
from lcspec.server import chat
from lcspec.server.errors import from_validation
from lcspec.server.job import Job

Body = TypeVar("Body", bound=BaseModel)


class FollowedJob(Job):
    """A job whose last events are kept."""

    started: Started | None = None
    finished: Finished | None = None

    @classmethod
    def over(cls, job: Job) -> FollowedJob:
        """The same job."""
        job.__class__ = cls
        assert isinstance(job, FollowedJob)
        return job

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """As Job's."""
        async for index, event in super().events():
            if isinstance(event, Started):
                self.started = event
            elif isinstance(event, Finished):
                self.finished = event
            yield index, event

    @property
    def cached(self) -> int:
        """Prompt tokens that were not evaluated for this request."""
        return self.started.reused if self.started is not None else 0


def body_of(kind: type[Body], fields: Mapping[str, Any]) -> Body:
    """A body of the OpenAI API with those fields that are not None.

    Raises:
        ApiError: 400, a field is wrong.
    """
    body = {k: v for k, v in fields.items() if v is not None}
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise from_validation(error.errors(), body) from error


async def whole_choice(made: chat.Chat, job: Job) -> dict[str, Any]:
    """The only choice of a chat completion."""
    data = read(await chat.whole(made, job))
    choice: dict[str, Any] = data["choices"][0]
    return choice


async def choices(made: chat.Chat, job: Job) -> AsyncGenerator[dict[str, Any], None]:
    """The choices of a streamed chat completion's chunks."""
    async for line in chat.streamed(made, job):
        if line.startswith("data: {"):
            for choice in json.loads(line[len("data: ") :])["choices"]:
                yield choice


def read(response: Response) -> dict[str, Any]:
    """A response's JSON."""
    data: dict[str, Any] = json.loads(bytes(response.body))
    return data
