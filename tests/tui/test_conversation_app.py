"""Conversations in the running application, on the bundled pair."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual import events
from textual.widgets import Button, Static

from lcspec.engine_thread import EngineThread
from lcspec.tui.app import ChatOptions
from lcspec.tui.bridge import Answer, Bridge
from lcspec.tui.markdown import code_blocks
from lcspec.tui.screens.chat import ChatScreen
from lcspec.tui.store import Store
from lcspec.tui.widgets.answer import AnswerView
from lcspec.tui.widgets.message import UserView
from lcspec.tui.widgets.notice import Notice

from .conftest import PLAIN, Driver, Start

pytestmark = [pytest.mark.tui, pytest.mark.slow]

HELLO = "Hi! I'd like to order a large iced latte, please."
LONG = "Write a python function to find the maximum of a list of numbers."


async def test_a_message_is_answered_shown_and_kept(start: Start) -> None:
    async with start() as driver:
        chat = await driver.ready()
        message = await driver.answer(HELLO)
        assert message.role == "assistant" and message.text and message.state == "done"
        view = chat.transcript.view_of(message.id)
        assert isinstance(view, AnswerView)
        assert view.document.text == message.text.strip("\n")
        assert f"{message.tokens} tokens" in view.shown and "seed 7" in view.shown
        assert chat.fill.used > message.tokens and f"{chat.fill.used}/" in str(
            chat.query_one("#status", Static).render()
        )
        assert "iced latte" in str(chat.query_one("#head", Static).render())
        path = driver.app.store.path
    with Store(path) as store:
        latest = store.latest()
        assert latest is not None
        assert [m.text for m in store.load(latest.id).branch] == [HELLO, message.text]


async def test_escape_stops_and_keeps_what_came(start: Start) -> None:
    async with start(max_tokens=400) as driver:
        chat = await driver.ready()
        brake = await driver.brake()
        await driver.send(LONG)
        brake.allow(6)
        await driver.some_text(5)
        await driver.press("escape")
        brake.release()
        message = await driver.finished(2)
        assert message.stop_reason == "cancelled" and message.state == "stopped" and message.text
        assert chat.prompt.text == ""
        view = chat.transcript.view_of(message.id)
        assert view is not None and "stopped by you" in view.shown


async def test_escape_before_anything_came_gives_the_prompt_back(start: Start) -> None:
    async with start() as driver:
        chat = await driver.ready()
        brake = await driver.brake()
        await driver.send(HELLO)
        await driver.until(lambda: chat.answering.turn is not None)
        await driver.press("escape")
        brake.release()
        await driver.until(lambda: not chat.answering.busy)
        await driver.until(lambda: chat.prompt.text == HELLO)
        await driver.until(lambda: not chat.chat.branch and not chat.transcript.views)
        message = await driver.answer(HELLO)
        assert message.text


async def test_the_same_seed_gives_the_same_text_and_another_one_a_branch_to_walk(start: Start) -> None:
    async with start(temperature=1.0) as driver:
        chat = await driver.ready()
        first = await driver.answer(HELLO)
        again = await driver.again("ctrl+t")
        assert again.id != first.id and again.text == first.text
        other = await driver.again("ctrl+r")
        assert other.seed != first.seed
        assert chat.chat.tree.place(other.id) == (3, 3)
        assert chat.figures.count
        await driver.press("shift+tab", "left")
        await driver.until(lambda: chat.chat.branch[-1].id == again.id)
        assert not chat.figures.count, "figures of an answer that is not shown"
        await driver.press("left", "left")
        await driver.until(lambda: chat.chat.branch[-1].id == first.id)
        await driver.until(lambda: len(chat.transcript.views) == 2 and chat.transcript.views[1].has_focus)
        assert chat.transcript.views[1].place == (1, 3)


async def test_editing_an_earlier_message_branches(start: Start) -> None:
    async with start() as driver:
        chat = await driver.ready()
        await driver.answer(HELLO)
        await driver.answer("Thank you!")
        assert len(chat.chat.branch) == 4
        await driver.press("shift+tab", "up", "up", "up", "e")
        await driver.until(lambda: chat.editing is not None and chat.prompt.text == HELLO)
        await driver.press("escape")
        await driver.until(lambda: chat.editing is None and not chat.prompt.text)
        await driver.press("shift+tab", "up", "up", "up", "e")
        await driver.until(lambda: chat.editing is not None)
        chat.prompt.give_back("Hi, how are you?")
        await driver.again("enter")
        assert [m.text for m in chat.chat.branch][0] == "Hi, how are you?" and len(chat.chat.branch) == 2
        assert isinstance(chat.transcript.views[0], UserView) and chat.transcript.views[0].place == (2, 2)
        await driver.press("shift+tab", "up", "left")
        await driver.until(lambda: len(chat.chat.branch) == 4 and len(chat.transcript.views) == 4)


async def test_switching_drafters_in_mid_answer_leaves_the_text_alone(start: Start) -> None:
    # exact: steps of other widths run other kernels, which decide near ties differently
    async with start(max_tokens=160, temperature=0.0, exact=True) as driver:
        chat = await driver.ready()
        plain = await driver.answer(LONG)
        assert plain.spans == ()
        brake = await driver.brake()
        await driver.press("ctrl+t")
        brake.allow(10)
        await driver.some_text(4)
        await chat.switch("ngram,model")
        brake.release()
        assert chat.choices.now.speculation.drafters == "ngram,model"
        switched = await driver.finished(2)
        assert switched.text == plain.text
        assert {s.drafter for s in switched.spans} >= {"model"}
        await chat.switch("nobody")
        assert chat.choices.now.speculation.drafters == "ngram,model"


async def test_the_lens_and_the_inspector(start: Start) -> None:
    async with start(drafters="ngram,model", max_tokens=80) as driver:
        chat = await driver.ready()
        message = await driver.answer(LONG)
        assert message.spans
        view = chat.transcript.view_of(message.id)
        assert isinstance(view, AnswerView)
        assert "```" not in view.shown  # Markdown
        await driver.press("f2")
        await driver.until(lambda: view.lens and "```python" in view.shown)  # the text itself
        assert "".join(p.text for p in view.pieces) == message.text
        await driver.press("f2")
        await driver.until(lambda: not view.lens and "```" not in view.shown)
        await driver.press("f3")
        totals, steps = chat.query_one("#inspector-totals", Static), chat.query_one("#inspector-steps", Static)
        await driver.until(lambda: "Accepted by depth" in str(totals.render()))
        assert "model" in str(totals.render()) and "Last draft" in str(steps.render())


async def test_a_slow_interface_never_holds_up_the_engine(start: Start) -> None:
    async with start(max_tokens=200, temperature=0.0) as driver:
        chat = await driver.ready()
        brake = await driver.brake()
        await driver.send(LONG)
        await driver.until(lambda: chat.answering.turn is not None)
        assert chat.answering.turn is not None
        chat.following(False)  # the screen does not look
        running: Answer = chat.answering.turn.running
        brake.release()
        assert isinstance(chat.source, Bridge)
        assert isinstance(chat.source.worker, EngineThread)
        engine = chat.source.worker.ready.result().engine
        await driver.until(lambda: running.ticket is not None and running.waiting and not engine.busy, "it is answered")
        assert chat.answering.turn.tokens == 0
        chat.following(True)
        message = await driver.finished(2)
        assert message.tokens == 200 or message.stop_reason == "stop"


async def test_a_full_context_is_never_silent(start: Start) -> None:
    async with start(ctx=160, max_tokens=16) as driver:
        chat = await driver.ready()
        while not any(n.ways for n in chat.transcript.query(Notice)):
            before = len(chat.chat.branch)
            assert before < 40
            await driver.send(HELLO)
            await driver.until(
                lambda before=before: (
                    not chat.answering.busy
                    and (len(chat.chat.branch) > before or any(n.ways for n in chat.transcript.query(Notice)))
                )
            )
        notice = next(n for n in chat.transcript.query(Notice) if n.ways)
        assert "context" in notice.text
        cut = chat.chat.branch[-1].stop_reason == "context"
        assert cut or chat.prompt.text == HELLO, "what was not answered is back in the input"
        assert notice.ways[0][0] == "drop"
        assert notice.focus_ways()
        await driver.until(lambda: driver.app.focused in notice.query(Button))
        await driver.press("enter")
        await driver.until(lambda: any("left out" in n.text for n in chat.transcript.query(Notice)))
        assert chat.choices.now.on_full == "drop"
        message = await driver.finished(2)
        assert chat.prompt.has_focus, "what is typed next is a message; on a message letters would be keys"
        assert message.role == "assistant" and message.state == "done"
        assert chat.fill.used <= 160


async def test_files_are_attached_with_their_tokens_before_sending(start: Start, tmp_path: Path) -> None:
    note = tmp_path / "my note.txt"
    note.write_text("The latte is for Ann.\n", encoding="utf-8")
    async with start() as driver:
        chat = await driver.ready()
        chat.prompt.give_back(f'/file "{note}"')
        await driver.press("enter")
        await driver.until(lambda: len(chat.attachments.pending) == 1)
        pending = chat.attachments.pending[0]
        assert pending.attachment.text == "The latte is for Ann.\n" and pending.tokens > 5
        assert chat.chat.branch == [] and chat.prompt.text == ""
        await driver.press("backspace")
        await driver.until(lambda: not chat.attachments.pending)
        chat.prompt.give_back(f"/file {tmp_path / 'missing.txt'}")
        await driver.press("enter")
        await driver.until(lambda: any("no file" in n.message for n in driver.app._notifications))
        await driver.until(lambda: chat.prompt.text.endswith("missing.txt"), "it comes back, to be corrected")
        assert not chat.attachments.pending
        await chat.attach([note])
        await driver.answer("Who is it for?")
        assert [a.name for a in chat.chat.branch[0].attachments] == ["my note.txt"]
        assert not chat.attachments.pending


async def test_history_and_new_lines_in_the_input(start: Start) -> None:
    async with start(max_tokens=4) as driver:
        chat = await driver.ready()
        await driver.answer("first")
        await driver.answer("second")
        await driver.press("d", "r", "a", "f", "t", "up")
        assert chat.prompt.text == "second"
        await driver.press("up", "up")
        assert chat.prompt.text == "first"
        await driver.press("down", "down")
        assert chat.prompt.text == "draft"
        await driver.press("ctrl+j", "x")
        assert chat.prompt.text == "draft\nx"


async def test_a_line_is_deleted_to_its_ends_however_often_it_is_wrapped(start: Start) -> None:
    """A long message that came back is taken out of the input with one key."""
    async with start() as driver:
        prompt = (await driver.ready()).prompt
        prompt.give_back("first\n" + "word " * 200)
        await driver.press("ctrl+u")
        assert prompt.text == "first\n"
        await driver.press("ctrl+u")
        assert prompt.text == "first", "then the line break"
        prompt.text = "word " * 200 + "\nlast"
        prompt.move_cursor((0, 4))
        await driver.press("ctrl+k")
        assert prompt.text == "word\nlast"
        await driver.press("ctrl+k")
        assert prompt.text == "wordlast"


async def test_resuming_opens_the_conversation_used_last(start: Start, pair: tuple[Path, Path]) -> None:
    async with start() as driver:
        await driver.ready()
        first = await driver.answer(HELLO)
    options = ChatOptions(model=pair[0], resume=True, overrides=PLAIN)
    async with start(options=options) as driver:
        chat = await driver.ready()
        assert [m.text for m in chat.chat.branch] == [HELLO, first.text]
        assert len(chat.transcript.views) == 2
        await driver.press("up")
        assert chat.prompt.text == HELLO


async def test_thinking_is_folded(start: Start) -> None:
    async with start() as driver:
        chat = await driver.ready()
        user = chat.chat.add_user("Why?")
        stored = chat.chat.begin_answer(parent=user.id)
        from lcspec.answers.text import Piece

        stored.append([Piece("<think>\nlet me see\n</think>\n\nBecause.", None)])
        stored.finish("done", stop_reason="stop")
        await chat.open(chat.chat)
        view = chat.transcript.view_of(stored.id)
        assert isinstance(view, AnswerView)
        assert view.document.text == "Because."
        assert "Thought: 3 words" in view.shown and "let me see" not in view.shown
        view.focus()
        await driver.press("t")
        await driver.until(lambda: "let me see" in view.shown)
        await driver.pilot.click(view, offset=(6, 1))  # a click on that line folds it
        await driver.until(lambda: "let me see" not in view.shown)


async def test_a_conversation_of_200_messages_makes_few_widgets_and_all_can_be_reached(start: Start) -> None:
    async with start() as driver:
        chat = await driver.ready()
        from lcspec.answers.text import Piece

        for i in range(100):
            user = chat.chat.add_user(f"question {i}")
            stored = chat.chat.begin_answer(parent=user.id)
            stored.append([Piece(f"answer {i}\n\n```python\nx = {i}\n```\n", None)])
            stored.finish("done", stop_reason="stop")
        await chat.open(chat.chat)
        transcript = chat.transcript
        assert len(transcript.views) <= 20 and transcript.views[-1].message.text.startswith("answer 99")
        await driver.until(lambda: transcript.max_scroll_y > 0 and transcript.scroll_y == transcript.max_scroll_y)
        await driver.until(lambda: transcript.scroll_y > transcript.size.height)  # more is there than is seen
        in_order = [m.id for m in chat.chat.branch]
        while transcript.first:
            transcript.scroll_page_up(animate=False)
            await driver.pilot.pause(0.01)
            views = [v.message.id for v in transcript.views]
            assert views == in_order[transcript.first : transcript.last]  # in order, none twice
            assert len(views) < 100
        while transcript.scroll_y:
            transcript.scroll_home(animate=False)
            await driver.pilot.pause(0.01)
        await driver.until(lambda: not transcript.query_one("#earlier").display)
        assert transcript.last < 200 and transcript.query_one("#later").display
        while transcript.last < 200:
            transcript.scroll_page_down(animate=False)
            await driver.pilot.pause(0.01)
            views = [v.message.id for v in transcript.views]
            assert views == in_order[transcript.first : transcript.last] and len(views) < 100
        assert transcript.first > 0  # those left far behind went


async def test_what_is_on_the_screen_stays_where_it_is_while_messages_come_and_go(start: Start) -> None:
    async with start(size=(80, 24)) as driver:
        chat = await driver.ready()
        from lcspec.answers.text import Piece

        for i in range(60):
            user = chat.chat.add_user(f"question {i}")
            stored = chat.chat.begin_answer(parent=user.id)
            stored.append([Piece(f"answer {i}\n\n" + "- item\n" * (i % 7), None)])
            stored.finish("done", stop_reason="stop")
        await chat.open(chat.chat)
        transcript = chat.transcript
        await driver.until(lambda: transcript.max_scroll_y > 0 and transcript.scroll_y == transcript.max_scroll_y)

        def top() -> tuple[str, float]:
            view = next(v for v in transcript.views if v.virtual_region.bottom > transcript.scroll_y)
            return view.message.id, view.virtual_region.y - transcript.scroll_y

        async def settled() -> None:
            """Nothing more comes or goes."""
            ahead = 2 * transcript.size.height
            await driver.pilot.pause()
            await driver.until(
                lambda: (
                    not transcript.fetching
                    and (not transcript.first or transcript.scroll_y > ahead)
                    and (transcript.last == 120 or transcript.max_scroll_y - transcript.scroll_y > ahead)
                )
            )

        await settled()
        transcript.release_anchor()
        for step in [-9] * 25 + [9] * 12:
            before, first, last = transcript.scroll_y, transcript.first, transcript.last
            seen = top()
            transcript.scroll_to(y=before + step, animate=False, immediate=True)
            moved = transcript.scroll_y - before
            wanted = next(v for v in transcript.views if v.message.id == seen[0])
            place = wanted.virtual_region.y - transcript.scroll_y
            assert place == seen[1] - moved
            await settled()
            if (first, last) != (transcript.first, transcript.last):
                assert wanted.virtual_region.y - transcript.scroll_y == place
        assert transcript.first < 100
        while transcript.first and transcript.last == 120:  # to where there are others above and below
            transcript.scroll_page_up(animate=False)
            await settled()
        for load, step in ((transcript.load_earlier, -9), (transcript.load_later, 9)):
            view, offset = top()
            wanted = next(v for v in transcript.views if v.message.id == view)
            first, last = transcript.first, transcript.last
            loading = asyncio.create_task(load())
            await asyncio.sleep(0)
            transcript.scroll_to(y=transcript.scroll_y + step, animate=False, immediate=True)  # while they come
            await loading
            await settled()
            assert (first, last) != (transcript.first, transcript.last), "others came"
            assert wanted.virtual_region.y - transcript.scroll_y == offset - step, "and the user's step counts"


async def with_lines(driver: Driver, n: int) -> ChatScreen:
    """The chat with a conversation of `n` short messages."""
    chat = await driver.ready()
    for i in range(n):
        chat.chat.add_user(f"line {i}", parent=chat.chat.info.leaf)
    await chat.open(chat.chat)
    return chat


async def test_page_keys_scroll_from_the_input_and_the_end_is_one_key_away(start: Start) -> None:
    async with start(size=(80, 24)) as driver:
        chat = await with_lines(driver, 120)
        transcript = chat.transcript
        await driver.until(lambda: transcript.max_scroll_y > 0 and transcript.scroll_y == transcript.max_scroll_y)
        while transcript.last == 120:
            await driver.press("pageup")
        await driver.press("ctrl+end")
        await driver.until(lambda: transcript.last == 120 and transcript.scroll_y == transcript.max_scroll_y)
        assert chat.prompt.has_focus


async def test_a_tall_terminal_is_filled(start: Start) -> None:
    async with start(size=(120, 90)) as driver:
        chat = await with_lines(driver, 80)
        transcript = chat.transcript
        await driver.until(lambda: transcript.max_scroll_y > transcript.size.height)
        assert transcript.first > 0
        await driver.until(lambda: transcript.scroll_y == transcript.max_scroll_y)  # still at the end


async def test_a_code_block_is_still_there_when_its_stream_has_ended(start: Start) -> None:
    async with start(max_tokens=60, temperature=0.0) as driver:
        chat = await driver.ready()
        message = await driver.answer(LONG)
        assert message.text.startswith("```python")
        view = chat.transcript.view_of(message.id)
        assert view is not None
        # a long line is folded
        assert "".join(code_blocks(message.text)[0].split()) in "".join(view.shown.split())


async def test_letters_typed_faster_than_they_are_shown_are_not_overtaken_by_enter(start: Start) -> None:
    async with start(max_tokens=4) as driver:
        chat = await driver.ready()
        for letter in "quick brown":
            driver.app.post_message(events.Key("space" if letter == " " else letter, letter))
        driver.app.post_message(events.Key("enter", "\r"))
        driver.app.post_message(events.Key("x", "x"))
        await driver.finished(2)
        assert chat.chat.branch[0].text == "quick brown"
        assert chat.prompt.text == "x"


async def test_reading_above_is_not_disturbed_by_an_answer(start: Start) -> None:
    async with start(max_tokens=200, temperature=0.0, size=(80, 24)) as driver:
        chat = await driver.ready()
        for i in range(10):
            chat.chat.add_user(f"earlier {i}", parent=chat.chat.info.leaf)
        await chat.open(chat.chat)
        transcript = chat.transcript
        await driver.until(lambda: transcript.max_scroll_y > 0)
        brake = await driver.brake()
        await driver.send(LONG)
        brake.allow(60)
        await driver.some_text(50)
        await driver.until(lambda: transcript.scroll_y == transcript.max_scroll_y)  # it follows
        transcript.scroll_to(y=1, animate=False)
        await driver.until(lambda: transcript.scroll_y == 1)
        brake.release()
        await driver.finished(12)
        assert transcript.scroll_y == 1 < transcript.max_scroll_y
