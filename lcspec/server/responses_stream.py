"""The events of a streamed /v1/responses answer."""

from __future__ import annotations

from typing import Any, AsyncGenerator

from lcspec.answers.deltas import CallStart, Content, Delta, Reasoning
from lcspec.engine.events import Tokens
from lcspec.server import answer
from lcspec.server.job import Job
from lcspec.server.journal import note_answer, note_calls
from lcspec.server.response_items import call_item, ended, message_item, new_id, reasoning_item
from lcspec.server.responses import Reply
from lcspec.server.streaming import event


class Writer:
    """Numbers the events and keeps track of the output items."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.output: list[dict[str, Any]] = []
        self._number = 0
        self._message: dict[str, Any] | None = None  # the item being written, of either kind
        self._call: dict[str, Any] | None = None
        self._thought: str | None = None
        self._identity = ""
        self._logprobs: list[Any] = []

    def event(self, kind: str, **fields: Any) -> str:
        """One event."""
        self._number += 1
        return event({"type": kind, "sequence_number": self._number - 1, **fields}, kind)

    def add(self, delta: Delta, logprobs: list[Any]) -> list[str]:
        """Events for a piece of the answer."""
        if isinstance(delta, Content):
            return self._text(delta.text, logprobs)
        if isinstance(delta, Reasoning):
            return self._reasoning(delta.text)
        if isinstance(delta, CallStart):
            out = self.close()
            function = {"name": delta.name, "arguments": ""}
            self._call, self._identity = {"id": delta.id, "function": function}, new_id("fc")
            item = call_item(self.reply.body, self._identity, self._call, "in_progress")
            return [*out, self.event("response.output_item.added", output_index=len(self.output), item=item)]
        assert self._call is not None
        self._call["function"]["arguments"] += delta.text
        return [self._item_event("response.function_call_arguments.delta", delta=delta.text)]

    def _text(self, text: str, logprobs: list[Any]) -> list[str]:
        out = []
        if self._message is None:
            out = self.close()
            self._message, self._identity, self._logprobs = {"text": ""}, new_id("msg"), []
            item = message_item(self._identity, "", [], "in_progress") | {"content": []}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            out.append(self.event("response.output_item.added", output_index=len(self.output), item=item))
            out.append(self._item_event("response.content_part.added", content_index=0, part=part))
        self._message["text"] += text
        self._logprobs += logprobs
        out.append(self._item_event("response.output_text.delta", content_index=0, delta=text, logprobs=logprobs))
        return out

    def _reasoning(self, text: str) -> list[str]:
        out = []
        if self._thought is None:
            out = self.close()
            self._thought, self._identity = "", new_id("rs")
            item = reasoning_item(self.reply.body, self._identity, "", "in_progress") | {"content": [], "summary": []}
            out.append(self.event("response.output_item.added", output_index=len(self.output), item=item))
            out += self._summary_part("added", "")
        self._thought += text
        out.append(self._reasoning_event("delta", delta=text))
        return out

    def _reasoning_event(self, what: str, **fields: Any) -> str:
        if self.reply.body.summary is None:
            return self._item_event(f"response.reasoning_text.{what}", content_index=0, **fields)
        return self._item_event(f"response.reasoning_summary_text.{what}", summary_index=0, **fields)

    def _summary_part(self, what: str, text: str) -> list[str]:
        if self.reply.body.summary is None:
            return []
        part = {"type": "summary_text", "text": text}
        return [self._item_event(f"response.reasoning_summary_part.{what}", summary_index=0, part=part)]

    def _item_event(self, kind: str, **fields: Any) -> str:
        return self.event(kind, item_id=self._identity, output_index=len(self.output), **fields)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to see: no message, no call."""
        return self._message is None and self._call is None and all(i["type"] == "reasoning" for i in self.output)

    def close(self, status: str = "completed") -> list[str]:
        """Events that end the item being written."""
        out: list[str] = []
        if self._message is not None:
            text = self._message["text"]
            item = message_item(self._identity, text, self._logprobs, status)
            out.append(
                self._item_event("response.output_text.done", content_index=0, text=text, logprobs=self._logprobs)
            )
            out.append(self._item_event("response.content_part.done", content_index=0, part=item["content"][0]))
        elif self._call is not None:
            item = call_item(self.reply.body, self._identity, self._call, status)
            arguments, name = item["arguments"], item["name"]
            out.append(self._item_event("response.function_call_arguments.done", name=name, arguments=arguments))
        elif self._thought is not None:
            item = reasoning_item(self.reply.body, self._identity, self._thought, status)
            out.append(self._reasoning_event("done", text=self._thought))
            out += self._summary_part("done", self._thought)
        else:
            return out
        out.append(self.event("response.output_item.done", output_index=len(self.output), item=item))
        self.output.append(item)
        self._message = self._call = self._thought = None
        return out


async def streamed(reply: Reply, job: Job) -> AsyncGenerator[str, None]:
    """The answer as typed events."""
    writer, text = Writer(reply), reply.text()
    yield writer.event("response.created", response=reply.envelope("in_progress", []))
    yield writer.event("response.in_progress", response=reply.envelope("in_progress", []))
    async for _, item in job.events():
        text.add(item)
        found = text.read(item)
        logprobs = []
        if isinstance(item, Tokens) and reply.request.logprobs is not None:
            logprobs = answer.chat_logprobs(reply.service.vocab, item.tokens)["content"]
            found = found or [Content("")]
        for i, delta in enumerate(found):
            for line in writer.add(delta, logprobs if i == 0 else []):
                yield line
    if writer.empty:
        for line in writer.add(Content(""), []):  # an empty answer is a message as well
            yield line
    for line in writer.close(ended(text)):
        yield line
    note_answer(reply.service, text.text)
    await note_calls(reply.service, text)
    reply.keep(writer.output)
    last = reply.envelope("completed", writer.output, text)
    yield writer.event(f"response.{last['status']}", response=last)
