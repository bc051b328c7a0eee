"""A session of an agent, recorded as what happened in it: 50 requests to one model, and the prompts that they make.

The model's answers are its own, so the record has what the others wrote: the user, the tools, and what they did with
an answer. Prompts are made as a chat template of a thinking model makes them: the reasoning of earlier turns is left
out as soon as the user writes again.

Each line of `RECORD` is one request. `user TEXT` and `tool TEXT` write a message first; `again` asks for another
answer in place of the latest one; `edit N` keeps the first N tokens of the latest answer and has it corrected by hand;
`title` is another conversation that shares the instructions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Iterator

SYSTEM = (
    "You are a careful assistant in a repository of source code. You read files before you change them, run the "
    "tests after every change, and say in one line what you did. Tools: read(path), search(text), write(path, text), "
    "run(command). Call one tool at a time and wait for what it returns. Never touch files outside the repository. "
    "When you are done, write a summary of the change for somebody who has not followed, and list what is left open."
)
FILE = (
    "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n"
    "    return area(width, height) * depth\n\n\ndef test_volume():\n    assert volume(2, 3, 4) == 24\n"
)
LOG = (
    "collected 14 items; 13 passed, 1 failed: test_volume: assert 20 == 24; the failing line is in shapes.py, line 6. "
)
RECORD = [
    "user The volume of a box is wrong since yesterday. Please find out why and mend it.",
    *("tool " + FILE, "tool " + LOG, "tool " + FILE * 2, "again", "tool ok, 14 passed in 0.3 s"),
    "user Thanks. Does the same mistake happen anywhere else in the repository? Look at all the shapes, please.",
    *("tool " + LOG * 2, "tool " + FILE, "tool nothing found", "tool " + FILE * 2, "tool " + LOG),
    "title Give this conversation a title of five words.",
    "user Then add a test for boxes that are flat, and one for negative sizes, which should raise an error.",
    *("tool " + FILE, "tool written, 22 lines", "tool " + LOG, "edit 8", "tool written, 23 lines", "tool 16 passed"),
    "again",
    "user I would rather have ValueError than AssertionError there, with the size in the message.",
    *("tool " + FILE * 2, "tool written, 24 lines", "tool " + LOG, "tool " + FILE, "tool 16 passed", "again"),
    "user Now the documentation: a page on shapes with an example for each of them, as short as it can be.",
    *("tool no such file: docs/shapes.md", "tool " + FILE, "tool written, 40 lines", "edit 12", "tool " + LOG),
    "title Which files were changed so far? Answer with a list.",
    "user That reads well. Shorten the second paragraph and put the table first.",
    *("tool " + FILE * 2, "tool written, 31 lines", "tool " + LOG, "again", "again", "tool 16 passed"),
    "user Please make a release of it: version, notes, a tag.",
    *("tool " + LOG, "tool " + FILE, "tool written, 3 lines", "tool tagged", "tool " + LOG * 2),
    "user Good. Sum up what was done today, and what you would look at tomorrow.",
    *("tool " + LOG, "tool " + FILE, "again"),
]

Ids = tuple[int, ...]


@dataclass
class _Turn:
    """A message and the answer to it: `thought` tokens of the answer are reasoning."""

    message: Ids
    from_user: bool
    answer: Ids = ()
    thought: int = 0


@dataclass
class AgentSession:
    """Makes the prompts of the record.

    Attributes:
        encode: text to token ids, without any around it.
        begin, end: the tokens around a message.
        ask: given a prompt, the answer's token ids.
    """

    encode: Callable[[str], list[int]]
    begin: int
    end: int
    ask: Callable[[Ids], Ids]
    turns: list[_Turn] = field(default_factory=list)

    def play(self) -> Iterator[tuple[Ids, Ids]]:
        """Every prompt with its answer."""
        for line in RECORD:
            what, _, text = line.partition(" ")
            if what == "title":
                prompt = (*self._message("system", SYSTEM), *self._message("user", text), *self._header())
                yield prompt, self.ask(prompt)
                continue
            if what == "edit":
                latest = self.turns[-1]
                latest.answer = (*latest.answer[: int(text)], *self.encode(" corrected by hand"))
                what, text = "user", "Go on from there."
            if what in ("user", "tool"):
                self.turns.append(_Turn(self._message(what, text), what == "user"))
            prompt = self._prompt()
            answer = self.ask(prompt)
            self.turns[-1].answer, self.turns[-1].thought = answer, len(answer) // 3
            yield prompt, answer

    def _prompt(self) -> Ids:
        latest_user = max(i for i, turn in enumerate(self.turns) if turn.from_user)
        out = [*self._message("system", SYSTEM)]
        for i, turn in enumerate(self.turns):
            out += [*turn.message, *self._header()]
            if i < len(self.turns) - 1:
                out += [*(turn.answer if i >= latest_user else turn.answer[turn.thought :]), self.end]
        return tuple(out)

    def _message(self, role: str, text: str) -> Ids:
        return (self.begin, *self.encode(f"{role}\n{text}"), self.end)

    def _header(self) -> Ids:
        return (self.begin, *self.encode("assistant\n"))
