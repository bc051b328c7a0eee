"""What can be done with the messages of a conversation: go to them, copy, edit, answer again, continue an answer."""

from __future__ import annotations

import secrets

from textual import on

from lcspec.tui.conversation import answer_text
from lcspec.tui.markdown import code_blocks
from lcspec.tui.screens.conversation import ConversationScreen
from lcspec.tui.speculation import SpeculationLog
from lcspec.tui.store import Message
from lcspec.tui.widgets.answer import AnswerView
from lcspec.tui.widgets.message import MessageView
from lcspec.tui.widgets.notice import Notice
from lcspec.tui.widgets.prompt import PromptInput
from lcspec.tui.wording import UNFINISHED

SEED_BITS = 32


class MessagesScreen(ConversationScreen):
    """A conversation whose messages can be worked on."""

    @property
    def target(self) -> MessageView | None:
        """The message with the focus, else the latest one."""
        focused, branch = self.focused, self.chat.branch
        if isinstance(focused, MessageView):
            return focused
        return self.transcript.view_of(branch[-1].id) if branch else None

    async def action_retry(self) -> None:
        """Answer the latest message again, with a new seed."""
        await self.transcript.to_end()
        await self.again(self.target, fresh_seed=True)

    async def action_repeat(self) -> None:
        """Answer the latest message again, with the same seed."""
        await self.transcript.to_end()
        await self.again(self.target, fresh_seed=False)

    async def again(self, view: MessageView | None, fresh_seed: bool) -> None:
        """Answer again beside the answer in `view` (or below the message in it)."""
        if view is None or self.answering.busy:
            self.notify("It is still answering. Esc stops it." if self.answering.busy else "There is no message yet.")
            return
        message = view.message
        parent = message.parent if message.role == "assistant" else message.id
        if parent is None:
            return
        seed = secrets.randbits(SEED_BITS) if fresh_seed else message.seed
        await self.answering.begin(parent, seed=seed)

    async def go_on(self, message: Message | None) -> None:
        """Continue an answer that did not end by itself."""
        if self._wait_for_answer():
            return
        branch = self.chat.branch
        if message is None or message.role != "assistant" or not branch or message.id != branch[-1].id:
            self.notify("Only the latest answer can be continued.")
        elif message.parent is None or not (message.state == "failed" or message.stop_reason in UNFINISHED):
            self.notify("This answer ended by itself: there is nothing to continue.")
        else:
            await self.answering.begin(message.parent, seed=message.seed, before=message)

    def _wait_for_answer(self) -> bool:
        if self.answering.busy:
            self.notify("It is still answering. Esc stops it.")
        return self.answering.busy

    def action_page_up(self) -> None:
        """A screen up."""
        self.transcript.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        """A screen down."""
        self.transcript.scroll_page_down(animate=False)

    @on(PromptInput.Paged)
    def _paged(self, event: PromptInput.Paged) -> None:
        (self.action_page_up if event.by < 0 else self.action_page_down)()

    async def action_to_end(self) -> None:
        """To the latest message."""
        await self.transcript.to_end()

    async def action_messages(self) -> None:
        """To the ways on that the latest notice offers, else to the latest message."""
        if self.transcript.last < len(self.chat.branch):
            await self.transcript.to_end()
        notices = list(self.transcript.query(Notice))
        if notices and notices[-1].focus_ways():
            return
        views = self.transcript.views
        if views:
            views[-1].focus()

    def action_copy_answer(self) -> None:
        """Copy the latest answer."""
        answers = [m for m in self.chat.branch if m.role == "assistant"]
        if answers:
            view = self.transcript.view_of(answers[-1].id)
            text = view.text if isinstance(view, AnswerView) else answers[-1].text
            self.copy(answer_text(text) or text)

    def copy(self, text: str) -> None:
        """To the clipboard (through the terminal, so over ssh as well)."""
        self.app.copy_to_clipboard(text)
        self.notify(f"Copied {len(text)} characters.", timeout=2)

    @on(MessageView.Wanted)
    async def _wanted(self, event: MessageView.Wanted) -> None:
        view, action = event.view, event.action
        if action in ("previous", "next"):
            self._move(view, -1 if action == "previous" else 1)
        elif action == "leave":
            self.prompt.focus()
        elif action in ("older_branch", "newer_branch"):
            await self._walk(view, -1 if action == "older_branch" else 1)
        elif action == "edit":
            self._edit(view.message)
        elif action in ("retry", "repeat"):
            await self.again(view, fresh_seed=action == "retry")
        elif action == "go_on":
            await self.go_on(view.message)
        elif action == "copy":
            self.copy(answer_text(view.text) or view.text if isinstance(view, AnswerView) else view.message.text)
        elif action == "copy_code":
            self._copy_code(view)
        elif action == "thinking" and isinstance(view, AnswerView):
            view.toggle_thinking()

    def _move(self, view: MessageView, by: int) -> None:
        views = self.transcript.views
        at = views.index(view) + by
        if at >= len(views):
            if self.transcript.last < len(self.chat.branch):
                self.call_later(self.transcript.load_later)
            else:
                self.prompt.focus()
        elif at >= 0:
            views[at].focus()
        else:
            self.call_later(self.transcript.load_earlier)

    async def _walk(self, view: MessageView, by: int) -> None:
        if self._wait_for_answer():
            return
        place, count = self.chat.tree.place(view.message.id)
        if not 1 <= place + by <= count:
            return
        depth = next((i for i, m in enumerate(self.chat.branch) if m.id == view.message.id), None)
        branch = self.chat.walk(view.message.id, by)
        self.figures = SpeculationLog()  # those were the other branch's
        await self.transcript.show(branch)
        if depth is not None and depth < len(branch):
            sibling = self.transcript.view_of(branch[depth].id)
            if sibling is not None:
                sibling.focus()
        self.refresh_fill()

    def _edit(self, message: Message) -> None:
        if self._wait_for_answer():
            return
        self.set_editing(message)
        self.prompt.give_back(message.text)
        self.prompt.focus()
        self.run_worker(self.attach_again(message))

    def _copy_code(self, view: MessageView) -> None:
        text = view.text if isinstance(view, AnswerView) else view.message.text
        blocks = code_blocks(text)
        if not blocks:
            self.notify("There is no code block in this message.")
            return
        at = self._code_at.get(view.message.id, 0) % len(blocks)
        self._code_at[view.message.id] = at + 1
        self.app.copy_to_clipboard(blocks[at])
        self.notify(f"Copied code block {at + 1} of {len(blocks)}.", timeout=2)
