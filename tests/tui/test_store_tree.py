"""The tree of messages: branches, siblings, walking; against a simple model of it, and with damage."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lcspec.tui.store import Message, MessageTree


def message(number: str, parent: str | None = None, **rest: object) -> Message:
    return Message(number, "chat", parent, "user", number, **rest)  # type: ignore[arg-type]


def ids(messages: object) -> list[str]:
    return [m.id for m in messages]  # type: ignore[attr-defined]


def forked() -> MessageTree:
    """a - b - c, with d beside b, and e beside a."""
    return MessageTree([message("a"), message("b", "a"), message("c", "b"), message("d", "a"), message("e")])


def test_an_empty_tree() -> None:
    tree = MessageTree()
    assert len(tree) == 0 and list(tree) == [] and tree.branch(None) == [] and tree.branch("x") == []
    assert tree.leaf_below(None) is None and tree.step("x", 1) is None and tree.place("x") == (0, 0)
    assert tree.subtree("x") == [] and tree.siblings("x") == () and tree.children("x") == ()
    assert "x" not in tree and None not in tree


def test_branches_and_siblings() -> None:
    tree = forked()
    assert len(tree) == 5
    assert ids(tree) == ["a", "b", "c", "d", "e"]
    assert ids(tree.branch("c")) == ["a", "b", "c"] and ids(tree.branch("e")) == ["e"]
    assert ids(tree.siblings("b")) == ["b", "d"] and ids(tree.siblings("e")) == ["a", "e"]
    assert tree.place("d") == (2, 2) and tree.place("c") == (1, 1)
    assert ids(tree.subtree("a")) == ["a", "b", "c", "d"]


def test_walking_goes_to_the_end_of_the_branch_left_last() -> None:
    tree = forked()
    assert tree.leaf_below("a") == "d", "the newest, when nothing was chosen"
    tree.choose("c")
    assert tree.leaf_below("a") == "c" and tree.leaf_below(None) == "c"
    assert tree.step("b", 1) == "d" and tree.step("d", -1) == "c"
    assert tree.step("d", 1) == "d" and tree.step("b", -5) == "c", "the ends hold"
    assert tree.step("a", 1) == "e" and tree.step("e", -1) == "c"


def test_a_replaced_message_keeps_its_place_and_parent() -> None:
    tree = forked()
    tree.put(replace(message("b", "e"), text="new"))
    assert tree.get("b").text == "new" and tree.get("b").parent == "a"
    assert ids(tree.siblings("b")) == ["b", "d"] and ids(tree.branch("c")) == ["a", "b", "c"]


def test_deleted_messages_are_out_of_sight_and_come_back() -> None:
    tree = forked()
    tree.choose("c")
    for number in ("b", "c"):
        tree.put(replace(tree.get(number), deleted=True))
    assert len(tree) == 3 and "b" not in tree and tree.branch("c") == []
    assert tree.leaf_below("a") == "d" and tree.place("d") == (1, 1)
    assert tree.get("c").text == "c" and len(tree.everything) == 5
    for number in ("b", "c"):
        tree.put(replace(tree.get(number), deleted=False))
    assert tree.leaf_below("a") == "c" and tree.place("d") == (2, 2)


def test_damage_hides_nothing() -> None:
    orphan = MessageTree([message("a"), message("b", "gone"), message("c", "b")])
    assert ids(orphan.children(None)) == ["a", "b"] and ids(orphan.branch("c")) == ["b", "c"]
    ring = MessageTree([message("a", "c"), message("b", "a"), message("c", "b"), message("d", "c"), message("e", "e")])
    assert len(ring) == 5 and sorted(ids(ring)) == ["a", "b", "c", "d", "e"]
    assert ids(ring.branch("d")) == ["a", "b", "c", "d"] and ids(ring.branch("e")) == ["e"]
    late = MessageTree([message("child", "parent"), message("parent")])
    assert ids(late.branch("child")) == ["parent", "child"], "a parent may arrive after its child"


@given(st.lists(st.tuples(st.integers(0, 12), st.one_of(st.none(), st.integers(0, 14)), st.booleans()), max_size=40))
@settings(deadline=None)
def test_whatever_the_parents_every_message_is_on_one_branch(rows: list[tuple[int, int | None, bool]]) -> None:
    tree = MessageTree()
    shown: dict[str, bool] = {}
    for number, parent, deleted in rows:
        tree.put(message(str(number), None if parent is None else str(parent), deleted=deleted))
        shown[str(number)] = not deleted
    wanted = {number for number, is_shown in shown.items() if is_shown}
    assert set(ids(tree)) == wanted and len(list(tree)) == len(tree) == len(wanted)
    for number in wanted:
        branch = ids(tree.branch(number))
        assert branch[-1] == number and len(set(branch)) == len(branch)
        assert branch[0] in ids(tree.children(None))
        index, count = tree.place(number)
        assert ids(tree.siblings(number))[index - 1] == number and count == len(tree.siblings(number))
        leaf = tree.leaf_below(number)
        assert leaf is not None and number in ids(tree.branch(leaf)) and not tree.children(leaf)


class Walking(RuleBasedStateMachine):
    """Adding, choosing, deleting and walking, against dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = MessageTree()
        self.parents: dict[str, str | None] = {}
        self.gone: set[str] = set()

    def shown(self) -> list[str]:
        return [n for n in self.parents if n not in self.gone]

    @rule(pick=st.integers(0, 100), first=st.booleans())
    def add(self, pick: int, first: bool) -> None:
        shown = self.shown()
        parent = None if first or not shown else shown[pick % len(shown)]
        number = f"m{len(self.parents)}"
        self.parents[number] = parent
        self.tree.put(message(number, parent))

    @precondition(lambda self: self.shown())
    @rule(pick=st.integers(0, 100))
    def choose(self, pick: int) -> None:
        number = self.shown()[pick % len(self.shown())]
        self.tree.choose(number)
        leaf = self.tree.leaf_below(number)
        assert leaf is not None
        self.tree.choose(leaf)
        assert self.tree.leaf_below(None) == leaf
        assert all(self.tree.leaf_below(m.id) == leaf for m in self.tree.branch(leaf))

    @precondition(lambda self: self.shown())
    @rule(pick=st.integers(0, 100), by=st.integers(-3, 3))
    def walk(self, pick: int, by: int) -> None:
        number = self.shown()[pick % len(self.shown())]
        siblings = [n for n in self.shown() if self.parents[n] == self.parents[number]]
        wanted = siblings[min(max(siblings.index(number) + by, 0), len(siblings) - 1)]
        leaf = self.tree.step(number, by)
        assert leaf is not None and wanted in ids(self.tree.branch(leaf))

    @precondition(lambda self: self.shown())
    @rule(pick=st.integers(0, 100), back=st.booleans())
    def delete(self, pick: int, back: bool) -> None:
        number = self.shown()[pick % len(self.shown())]
        below = self.tree.subtree(number)
        for m in below:
            self.tree.put(replace(m, deleted=True))
        if back:
            for m in below:
                self.tree.put(replace(m, deleted=False))
        else:
            self.gone |= set(ids(below))

    @invariant()
    def agrees(self) -> None:
        assert set(ids(self.tree)) == set(self.shown())
        for number in self.shown():
            expected, at = [], number
            while at is not None:
                expected.append(at)
                at = self.parents[at]  # type: ignore[assignment]
            assert ids(self.tree.branch(number)) == expected[::-1]


TestWalking = Walking.TestCase
TestWalking.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
