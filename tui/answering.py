"""The answering half of the chat screen: asks the engine, follows the answer, ends it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from lcspec.errors import ContextOverflow, LcspecError
from lcspec.tui.conversation import ContextFill, ContextFull, build_prompt
from lcspec.tui.pace import SHARE, SHARE_SPARE, Pacer
from lcspec.tui.source import UNKNOWN, Question
from lcspec.tui.store import Message
from lcspec.tui.store.records import title_of
from lcspec.tui.turn import Turn
from lcspec.tui.widgets.answer import AnswerView
from lcspec.tui.widgets.notice import Notice

if TYPE_CHECKING:
    from lcspec.tui.screens.conversation import ConversationScreen

# Seconds between two updates of the status line and the inspector.
FIGURES_EVERY = 0.25
# Share of a larger context that the conversation may fill at once.
ROOMY = 0.8
NEW = ("new", "New conversation")
DROP = ("drop", "Drop the oldest turns")
CONTINUE = ("continue", "Continue the answer")
RETRY = ("again", "Try again")
MODELS = ("models", "Choose another model")


def larger(n_ctx: int) -> tuple[str, str]:
    """The way on to a context of `n_ctx` tokens."""
    return f"ctx:{n_ctx}", f"Reload with {n_ctx:,} tokens"


class Answering:
    """Runs one answer at a time."""

    def __init__(self, screen: ConversationScreen) -> None:
        self.screen = screen
        self.turn: Turn | None = None
        self.busy = False  # from the decision to ask until the answer has ended
        self.keep_from: str | None = None
        self.pacer = Pacer()
        self._stopped_early = False
        self._figures_at = 0.0

    async def begin(
        self, parent: str, *, asked: Message | None = None, seed: int | None = None, before: Message | None = None
    ) -> None:
        """Ask for an answer to the branch that ends in `parent`; `seed` None takes that of the settings.

        `asked`: the message just sent, to be given back if nothing comes. `before`: the answer to go on with.
        """
        if self.busy:
            return
        self.busy, self._stopped_early = True, False
        try:
            started = await self._ask(parent, asked, seed, before)
        except ContextFull as full:
            await self._too_long(full, asked)
        except LcspecError as error:
            await self._refused(str(error), (RETRY, MODELS, NEW))
        else:
            self.turn = started
            await self.screen.transcript.show(self.screen.chat.branch)
            self._reopen(started)
            self.screen.transcript.anchor()
            self.pacer.share = SHARE_SPARE if self.screen.loaded.spare else SHARE
            self.pacer.start()
            self.screen.following(True)
            if self._stopped_early:
                self.stop()

    async def _ask(self, parent: str, asked: Message | None, seed: int | None, before: Message | None) -> Turn:
        screen, chat = self.screen, self.screen.chat
        source, loaded, now = screen.source, screen.loaded, self.screen.choices.now
        speculation = screen.choices.speculation(loaded.files)
        branch = chat.tree.branch(parent)
        written = len(await asyncio.to_thread(source.tokenize, before.text)) if before is not None else 0
        prompt = await asyncio.to_thread(
            build_prompt,
            source.tokenizer,
            branch,
            max(1, loaded.n_ctx - written),
            system=chat.info.system,
            on_full=now.on_full,
            keep_from=self.keep_from,
            think=now.think,
        )
        prompt = replace(prompt, fill=replace(prompt.fill, limit=loaded.n_ctx))
        self.keep_from = prompt.first
        sampling = now.sampling if seed is None else replace(now.sampling, seed=seed)
        request = await source.ask(Question(prompt, sampling, speculation, now.max_tokens, before))
        if before is not None:
            return Turn(request.running, chat.continue_answer(before.id), request.prompt, before=before)
        stored = chat.begin_answer(
            parent=parent,
            model=loaded.name,
            seed=sampling.seed,
            sampling=asdict(sampling),
            speculation=now.speculation.drafters,
        )
        turn = Turn(request.running, stored, request.prompt, asked, tags=request.tags)
        if request.tags is not None:
            stored.append(request.tags.opening)
        return turn

    def _reopen(self, turn: Turn) -> None:
        """The view of an answer that goes on streams again."""
        view = self.screen.transcript.view_of(turn.stored.id)
        if turn.before is not None and isinstance(view, AnswerView):
            view.resume(turn.stored.message)

    async def _too_long(self, full: ContextFull, asked: Message | None) -> None:
        """Nothing that was not answered stays in the conversation: it would be joined to every later message."""
        ways = [DROP] if full.drop_helps else []
        fits = self._context_for(full.fill.used)
        if fits is not None:
            ways.append(larger(fits))
        text = str(full)
        if asked is not None:
            await self._take_back(asked)
            text += ". Your message is back in the input."
        await self._refused(text, (*ways, NEW))

    async def _take_back(self, asked: Message) -> None:
        """The message goes back into the input, and a conversation that has no other loses the title it gave."""
        chat = self.screen.chat
        chat.remove(asked.id)
        if not chat.branch and chat.info.title == title_of(asked.text):
            chat.rename("")
        await self.screen.give_back(asked)
        self.screen.show_head()

    def _context_for(self, tokens: int) -> int | None:
        """A larger context that the model knows, with room for `tokens` and an answer; None: there is none."""
        loaded = self.screen.loaded
        n_ctx = loaded.n_ctx
        while n_ctx < loaded.n_ctx_train and (n_ctx == loaded.n_ctx or n_ctx * ROOMY < tokens):
            n_ctx *= 2
        n_ctx = min(n_ctx, loaded.n_ctx_train)
        return n_ctx if n_ctx > loaded.n_ctx and n_ctx * ROOMY >= tokens else None

    async def _refused(self, text: str, ways: tuple[tuple[str, str], ...]) -> None:
        self.busy = False
        await self.screen.transcript.show(self.screen.chat.branch)
        await self.screen.transcript.say(Notice(text, "error", ways))
        self.screen.refresh_fill()

    def stop(self) -> bool:
        """Stop the answer; False if there is none."""
        if not self.busy:
            return False
        if self.turn is None:
            self._stopped_early = True
        else:
            self.turn.stop()
        return True

    async def tick(self) -> None:
        """Take over what came; show it when it is time."""
        turn = self.turn
        if turn is None:
            return
        if turn.drain():
            await self._end(turn)
            return
        if not self.pacer.due():
            return
        view = self.screen.transcript.view_of(turn.stored.id)
        fresh = turn.take_fresh()
        if isinstance(view, AnswerView):
            view.show_progress("" if turn.tokens else turn.phase)
            if fresh:
                view.add(fresh)
                view.refresh_text()
        if time.monotonic() - self._figures_at >= FIGURES_EVERY:
            self._figures_at = time.monotonic()
            self.screen.show_figures()

    async def _end(self, turn: Turn) -> None:
        screen, message = self.screen, turn.result
        assert message is not None
        self.turn, self.busy = None, False
        screen.following(False)
        screen.figures = turn.log
        screen.workers.cancel_group(screen, "fill")  # a count from before the answer, which ends only now
        screen.fill = turn.fill
        if isinstance(turn.error, ContextOverflow) and not turn.tokens and turn.before is None:
            screen.chat.remove(message.id)  # a server counts by itself
            await self._too_long(ContextFull(str(turn.error), ContextFill(UNKNOWN, screen.loaded.n_ctx)), turn.asked)
        elif turn.stopping and not turn.tokens and message.state != "failed" and turn.before is None:
            await self._nothing_came(turn, message)
        else:
            view = screen.transcript.view_of(message.id)
            if isinstance(view, AnswerView):
                view.finish(message)
            await self._after(turn, message)
        screen.show_figures()
        screen.show_head()

    async def _after(self, turn: Turn, message: Message) -> None:
        """What the user must know beyond the answer itself."""
        screen, say = self.screen, self.screen.transcript.say
        if turn.prompt.notice:
            await say(Notice(turn.prompt.notice))
        why = screen.source.interruption()
        if why is not None and message.state != "failed":
            await say(Notice(f"Meanwhile {why}. It was started again, and the answer went on where it was."))
        if message.state == "failed":
            gone = not screen.source.alive
            await say(
                Notice(message.error or "the answer failed", "error", (MODELS,) if gone else (RETRY, MODELS, NEW))
            )
        elif message.stop_reason == "context":
            fits = self._context_for(screen.fill.used)
            ways = (larger(fits),) if fits is not None else ()
            await say(Notice("The context is full, so the answer ended here.", "warning", (DROP, *ways, NEW)))

    async def _nothing_came(self, turn: Turn, message: Message) -> None:
        """Give the prompt back."""
        screen = self.screen
        if turn.asked is not None:
            await self._take_back(turn.asked)
        else:
            screen.chat.remove(message.id)
            screen.chat.show(screen.chat.tree.leaf_below(message.parent))
        await screen.transcript.show(screen.chat.branch)
        screen.refresh_fill()
