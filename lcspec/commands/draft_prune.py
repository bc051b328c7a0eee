"""`lcspec draft prune`: a draft model from the target itself, by leaving layers out.

Zhang et al. 2023 ("Draft & Verify", arXiv:2309.08168) and LayerSkip (Elhoushi et al. 2024, arXiv:2404.16710),
without training: which layers are missed least is measured. A greedy search leaves out one layer after the other,
each time the one without which the model still agrees most often with the whole model's own greedy text; what is
written is the subset with the best predicted speed-up: agreement weighed against the time of a step here.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import click
import numpy as np

from lcspec.commands.calibrate import speedup
from lcspec.config import ModelOptions, SpeculationParams
from lcspec.engine.events import Tokens
from lcspec.errors import UnsupportedModel, UsageError
from lcspec.loading import model_options
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.prune import can_keep, count_layers, write_pruned
from lcspec.modelfiles.windows import windows_of
from lcspec.profiles.cost_curve import CostCurve
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import ModelPair, Session, loading_line, open_session

CTX = 1024
CHUNK = 64
# Candidates of a round after the first, which tries every layer: the ones missed least then.
LATER_CANDIDATES = 4
# Tokens of own text a prompt.
OWN_TOKENS = 48
TIMED_STEPS = 7


@dataclass(frozen=True)
class OwnText:
    """A prompt with the target's greedy answer to it."""

    tokens: tuple[int, ...]
    n_prompt: int


@dataclass(frozen=True)
class Trial:
    """A subset that was measured: how often its greedy choice is the target's, and what a step costs, relative to a
    step of the target."""

    layers: tuple[int, ...]
    agreement: float
    cost: float
    speedup: float


def run(
    model: Path | None,
    out: Path | None,
    keep_layers: int | None,
    search: bool | None,
    tokens: int,
    as_json: bool,
    **o: Any,
) -> int:
    """Search, write, print; 1 if nothing was worth writing.

    Raises:
        LcspecError: the model cannot be pruned, loaded or written.
    """
    target = ModelPair.resolve(model).target
    n = count_layers(read_gguf(target))
    if n < 2 or (keep_layers is not None and not 0 < keep_layers < n):
        raise UsageError(f"{target.name} has {n} layers, so from 1 to {n - 1} of them can be kept")
    folder = out.parent if out is not None else Path.cwd()
    if not folder.is_dir():
        raise UsageError(f"the folder {folder} does not exist: create it first")
    if out is not None and out.exists() and out.samefile(target):
        raise UsageError(f"{out} would be written over itself: give another name")
    ctx = min(CTX, read_header(target).context_length or CTX)
    options = model_options(target, o, exact=None, ctx=ctx, max_width=CHUNK)
    with open_session(options, None, loading_line()) as session:
        if not session.model.traits.attention_only:
            raise UnsupportedModel(f"{target.name} has a recurrent state, which cannot draft: use n-gram drafters")
        texts = own_texts(session, tokens)
        curve = cost_curve(session)
    searching = search if search is not None else keep_layers is None
    with tempfile.TemporaryDirectory(dir=folder, prefix=".prune-") as work:
        judge = Judge(target, options, texts, curve, Path(work) / "candidate.gguf")
        trials = settled(measured(judge, n, keep_layers, searching, quiet=as_json), curve)
        wanted = [t for t in trials if keep_layers in (None, len(t.layers))]
        best = max(wanted, key=lambda t: (t.speedup, t.agreement))
        worth = keep_layers is not None or best.speedup > 1.0
        path = out or folder / f"{target.stem}-keep{len(best.layers)}.gguf"
        if worth:
            write_pruned(target, judge.path, best.layers, {"agreement": best.agreement, "cost": best.cost})
            judge.path.replace(path)
    report(target, n, trials, best, path if worth else None, as_json)
    return 0 if worth else 1


def own_texts(session: Session, n: int) -> list[OwnText]:
    """About `n` tokens that the model writes itself, greedily, in answer to prompts of several kinds."""
    from lcspec.bench.builtin import builtin_prompts
    from lcspec.bench.prompts import spread
    from lcspec.engine.request import Request

    out: list[OwnText] = []
    for prompt in spread(builtin_prompts(), max(1, -(-n // OWN_TOKENS))):
        ids = session.prompt_ids(prompt.text)
        if session.model.header.chat_template is not None:
            ids = session.chat_ids([{"role": "user", "content": prompt.text}])[0]
        ids = ids[: session.engine.context.n_ctx - OWN_TOKENS - 1]
        request = Request(ids, SamplingParams(temperature=0.0), SpeculationParams(), OWN_TOKENS, ignore_end=True)
        answer = [t.id for e in session.engine.run(request) if isinstance(e, Tokens) for t in e.tokens]
        out.append(OwnText((*ids, *answer), len(ids)))
    return out


def cost_curve(session: Session) -> CostCurve:
    """The target's T(n): the stored one, or a short measurement."""
    from lcspec.engine.learned import QUICK_SECONDS
    from lcspec.profiles.step_cost import load_curve, measure

    engine = session.engine
    return load_curve(engine.context) or measure(engine.context, engine.padding.seq, budget=QUICK_SECONDS)


class Judge:
    """Measures subsets of a model's layers."""

    def __init__(
        self, target: Path, options: ModelOptions, texts: Sequence[OwnText], curve: CostCurve, path: Path
    ) -> None:
        self.target, self.options, self.texts, self.curve, self.path = target, options, texts, curve, path
        self.windows = windows_of(read_header(target))
        self.known: dict[tuple[int, ...], Trial] = {}

    def __call__(self, layers: Sequence[int]) -> Trial:
        """Write the subset, load it, and compare it with the target's own text."""
        key = tuple(layers)
        if not can_keep(self.windows, key):
            return Trial(key, 0.0, 1.0, 0.0)
        if key not in self.known:
            from lcspec.llama import Context, Model
            from lcspec.llama.step_time import token_seconds

            write_pruned(self.target, self.path, key)
            with Model.load(replace(self.options, path=self.path)) as model, Context(model) as context:
                agreed = [hit for text in self.texts for hit in agreement(context, text)]
                context.memory.clear()
                seconds = token_seconds(context, 0, self.texts[0].tokens, TIMED_STEPS)
            share = float(np.mean(agreed))
            plain = self.curve.measured(1, 0)
            self.known[key] = Trial(key, share, seconds / plain, speedup(self.curve, 0, share, seconds))
        return self.known[key]


def agreement(context: Any, text: OwnText) -> Iterator[bool]:
    """Whether the model's greedy choice is the next token, at every token of the answer."""
    context.memory.clear()
    batch, tokens = context.batch, text.tokens
    for start in range(0, len(tokens) - 1, CHUNK):
        part = tokens[start : min(start + CHUNK, len(tokens) - 1)]
        batch.clear()
        for i, token in enumerate(part, start=start):
            batch.add(token, i, (0,), logits=i + 1 >= text.n_prompt)
        context.decode()
        asked = [i + 1 for i in range(start, start + len(part)) if i + 1 >= text.n_prompt]
        for row, position in zip(context.logits(), asked):
            yield int(row.argmax()) == tokens[position]


def measured(
    judge: Callable[[Sequence[int]], Trial], n: int, keep: int | None, search: bool, quiet: bool
) -> list[Trial]:
    """The subsets that were tried, in order."""
    if not search:
        assert keep is not None
        return [judge(spread_layers(n, keep))]
    hidden = quiet or not sys.stderr.isatty()
    total = n + sum(min(LATER_CANDIDATES, left) for left in range(keep + 1 if keep else 2, n))
    with click.progressbar(length=total, label="leaving layers out", file=sys.stderr, hidden=hidden) as bar:
        return list(greedy_search(judge, n, keep or 1, lambda: bar.update(1)))


def settled(trials: Sequence[Trial], curve: CostCurve) -> list[Trial]:
    """The trials with the least time of a step measured at each number of layers: a busy machine only adds to it."""
    least: dict[int, float] = {}
    for t in trials:
        least[len(t.layers)] = min(t.cost, least.get(len(t.layers), t.cost))
    plain = curve.measured(1, 0)
    return [
        replace(t, cost=cost, speedup=speedup(curve, 0, t.agreement, cost * plain))
        for t in trials
        for cost in (least[len(t.layers)],)
    ]


def greedy_search(
    judge: Callable[[Sequence[int]], Trial], n: int, keep: int, progress: Callable[[], None] = lambda: None
) -> Iterator[Trial]:
    """Leave out one layer after the other down to `keep`; yields every subset that was tried."""
    layers, harm = list(range(n)), dict[int, float]()
    while len(layers) > keep:
        # In the first round every layer is tried; later on those without which it agreed most.
        candidates = sorted(layers, key=lambda i: harm.get(i, 0.0))[: LATER_CANDIDATES if harm else n]
        trials: dict[int, Trial] = {}
        for i in candidates:
            trials[i] = judge([j for j in layers if j != i])
            yield trials[i]
            progress()
        if not harm:
            harm = {i: -t.agreement for i, t in trials.items()}
        layers.remove(max(trials, key=lambda i: (trials[i].agreement, -i)))


def spread_layers(n: int, keep: int) -> list[int]:
    """`keep` of `n` layers, evenly spread, the first and the last among them."""
    if keep == 1:
        return [0]
    return sorted({round(i * (n - 1) / (keep - 1)) for i in range(keep)})


def report(target: Path, n: int, trials: Sequence[Trial], best: Trial, path: Path | None, as_json: bool) -> None:
    """The table of subsets, and what was written."""
    if as_json:
        told = {
            "model": str(target),
            "layers": n,
            "trials": [asdict(t) for t in trials],
            "best": asdict(best),
            "written": str(path) if path is not None else None,
        }
        click.echo(json.dumps(told))
        return
    click.echo(f"{target}: {n} layers\nlayers kept{'':<21} agreement   cost   predicted speed-up")
    for t in sorted(trials, key=lambda t: (-len(t.layers), -t.agreement)):
        mark = "*" if t == best else " "
        click.echo(f"{mark} {ranges(t.layers):<30} {t.agreement:9.1%} {t.cost:6.2f} {t.speedup:11.2f} x")
    if path is None:
        click.echo(
            f"No subset promises a speed-up here, so nothing was written; --keep-layers {len(best.layers)} writes the "
            "best one all the same."
        )
    else:
        click.echo(f"Written: {path}. Use it with --draft {path}.")


def ranges(layers: Sequence[int]) -> str:
    """0-3, 7 and so on."""
    out: list[list[int]] = []
    for i in layers:
        if out and i == out[-1][1] + 1:
            out[-1][1] = i
        else:
            out.append([i, i])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in out)
