"""What the inspector shows, as text: figures, acceptance by depth, the last step's tree, the steps before it."""

from __future__ import annotations

from typing import Callable

from textual.content import Content

from lcspec.engine.events import Step
from lcspec.tui.lens import style_of
from lcspec.tui.speculation import SpeculationLog, accepted_nodes, expected_accepted
from lcspec.tui.wording import saved, steps

PieceOf = Callable[[int], str]  # text of a token id

ABOUT = "Words are guessed ahead and checked by the model, several in one step: here is how many were right."
EXACT = {
    True: "Guesses change no bit of the text here.",
    False: "Where two words are nearly as likely, guesses may change which one is taken; --exact rules that out.",
    None: "",
}
BAR = 14
STEPS = 8
NODES = 16
ACCEPTED, REJECTED = "●", "○"
DEPTHS = 10


def totals_content(log: SpeculationLog, exact: bool | None = None) -> Content:
    """Figures of the whole answer; `exact`: see Loaded."""
    if not log.count:
        return Content.assemble((f"{ABOUT} No step yet: send a message and watch.", "dim"))
    bits = [Content.styled(EXACT[exact], "dim"), Content("")] if EXACT[exact] else []
    return Content("\n").join([*figures(log), *depth_plot(log), *bits])


def steps_content(log: SpeculationLog, piece_of: PieceOf, colour: bool = True) -> Content:
    """The latest drafted tree, and the last steps."""
    if not log.count:
        return Content("")
    last = next((s for s in reversed(log.steps) if s.stats.tree.n_drafted), None)
    parts = tree_lines(last, piece_of, colour) if last is not None else []
    return Content("\n").join([*parts, *step_lines(log, piece_of)])


def _head(text: str) -> Content:
    return Content.assemble((text, "bold"))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _figure(name: str, expected: str, measured: str) -> Content:
    return Content.assemble((f"{name:<17}", "dim"), f"{expected:>8}{measured:>10}")


def figures(log: SpeculationLog) -> list[Content]:
    """Totals of the answer."""
    gain = saved(log.saved) if log.saved is not None else "no difference" if log.drafting[0] else "nothing drafted"
    per_step = steps(log.tokens_per_step)
    lines = [
        Content.styled(ABOUT, "dim"),
        _head("This answer"),
        Content(f"{log.emitted} tokens in {log.count} steps{per_step and ', '}{per_step}"),
        Content.assemble((f"{'':<17}{'expected':>8}{'measured':>10}", "dim")),
        _figure("drafts accepted", _percent(log.estimated_acceptance), _percent(log.acceptance)),
        _figure("target tokens/s", _rate(log.expected_rate), _rate(log.measured_rate)),
        _figure("all tokens/s", "", _rate(log.rate)),
        Content.assemble((f"{'against plain':<17}", "dim"), gain),
    ]
    for name, (drafted, accepted) in sorted(log.by_drafter.items(), key=lambda item: -item[1][1]):
        lines.append(Content.assemble((f"{name:<16} ", "dim"), f"{accepted} of {drafted} accepted"))
    return [*lines, Content("")]


def depth_plot(log: SpeculationLog) -> list[Content]:
    """Acceptance by depth as bars."""
    rates = log.depth_rates()[:DEPTHS]
    if not rates:
        return []
    lines = [_head("Accepted by depth")]
    for depth, drafted, accepted in rates:
        share = accepted / drafted if drafted else 0.0
        bar = "█" * round(share * BAR) + "░" * (BAR - round(share * BAR))
        lines.append(Content.assemble(f"{depth:>2} ", (bar, "$text-success"), f" {share:>4.0%} of {drafted}"))
    return [*lines, Content("")]


def tree_lines(step: Step, piece_of: PieceOf, colour: bool) -> list[Content]:
    """The latest drafted tree. ● accepted, ○ not; the number is the drafter's own estimate."""
    stats, tree = step.stats, step.stats.tree
    taken = set(accepted_nodes(tree, stats.emitted, stats.accepted))
    lines = [_head("Last draft"), Content.assemble(("after ", "dim"), repr(piece_of(tree.tokens[0])))]
    shown = 0

    def walk(node: int, indent: str) -> None:
        nonlocal shown
        children = tree.children(node)
        for i, child in enumerate(children):
            if shown >= NODES:
                return
            shown += 1
            names = step.drafters_of(child)
            mark = ACCEPTED if child in taken else REJECTED
            style = style_of(names[0], colour) if names else ""
            branch = "" if len(children) == 1 else ("└ " if i == len(children) - 1 else "├ ")
            lines.append(
                Content.assemble(
                    (indent + branch, "dim"),
                    (f"{mark} ", "bold" if child in taken else "dim"),
                    (repr(piece_of(tree.tokens[child])), style if child in taken else ""),
                    (f" {tree.probs[child]:.2f} {'+'.join(names)}", "dim"),
                )
            )
            walk(child, indent + ("" if len(children) == 1 else "  " if i == len(children) - 1 else "│ "))

    walk(0, "")
    if tree.n_drafted > shown:
        lines.append(Content.assemble((f"and {tree.n_drafted - shown} more nodes", "dim")))
    if len(stats.emitted) > stats.accepted:
        lines.append(Content.assemble(("target's own: ", "dim"), repr(piece_of(stats.emitted[-1]))))
    return [*lines, Content("")]


def step_lines(log: SpeculationLog, piece_of: PieceOf) -> list[Content]:
    """The last steps, newest first: drafted, expected and accepted nodes, width, milliseconds, text."""
    heads = Content.assemble(("draft exp. acc. width  plan   took text", "dim"))
    lines = [Content.assemble(("Last steps", "bold"), (" (times in ms)", "dim")), heads]
    for step in list(log.steps)[: -STEPS - 1 : -1]:
        stats = step.stats
        width = f"{stats.width}" if stats.plan.width <= stats.width else f"{stats.width}>{stats.plan.width}"
        plan = f"{step.expected_seconds * 1e3:.1f}" if step.expected_seconds is not None else "-"
        text = "".join(piece_of(t) for t in stats.emitted).replace("\n", "⏎")
        lines.append(
            Content.assemble(
                f"{stats.tree.n_drafted:>5} {expected_accepted(step):>4.1f} {stats.accepted:>4} {width:>5} "
                f"{plan:>5} {step.seconds * 1e3:>6.1f} ",
                (text, "dim"),
            )
        )
    return lines
