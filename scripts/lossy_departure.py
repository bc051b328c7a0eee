"""How far the lossy verifiers depart from sampling the target: the table in docs/performance-scaled.md.

Synthetic pairs: target logits are Gumbel noise times a scale (larger is sharper), the draft's are the target's plus
Gaussian noise. For one token the emitted distribution is known exactly: what the verifier keeps of the draft, and the
target's own distribution for the rest.
"""

from __future__ import annotations

from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from lcspec.sampling.distribution import Distribution
from lcspec.spec.token_tree import TokenTree
from lcspec.spec.verifiers import make_verifier

Table = NDArray[np.float64]
VERIFIERS = ("typical", "lenient:lenience=0.8", "lenient:lenience=0.5", "lenient:lenience=0.2")
# (scale of the target's logits, noise of the draft's)
PAIRS = ((3.2, 1.0), (3.2, 3.0), (2.2, 0.7), (2.2, 2.0), (1.2, 0.5), (1.2, 1.5))
OWN = -1  # stands for the target's own choice


class OneRow:
    """A target (verifiers.Target) with the same distribution everywhere, whose own choice is recognisable."""

    greedy = False

    def __init__(self, p: Table) -> None:
        self.p = Distribution(np.arange(p.size, dtype=np.int32), p)

    def choose(self, node: int, position: int) -> int:
        """The target's own choice."""
        return OWN

    def distribution(self, node: int, position: int) -> Distribution:
        """The sampling distribution."""
        return self.p

    def unscaled(self, node: int) -> Distribution:
        """The model's distribution."""
        return self.p

    def accept(self, token: int) -> bool:
        """One token is enough."""
        return True

    def ends(self, token: int) -> bool:
        """No token does."""
        return False

    def fork(self) -> OneRow:
        """It has no state."""
        return self


def departure(verifier: str, p: Table, q: Table) -> float:
    """Total variation between the emitted distribution and `p` when one child is drawn from `q`."""
    name, _, factor = verifier.partition(":lenience=")
    if name == "lenient":
        kept, rest = np.minimum(q, p / float(factor)), np.maximum(p - q, 0.0)
        out = kept + (1.0 - kept.sum()) * (rest / rest.sum() if rest.any() else p)
    else:
        verify: Any = make_verifier(verifier).verify
        accepts = [bool(verify(TokenTree.chain(0, [t]), OneRow(p), 1, 0).tokens[0] != OWN) for t in range(p.size)]
        out = np.where(accepts, q, 0.0) + q[~np.array(accepts)].sum() * p
    return 0.5 * float(np.abs(out - p).sum())


def softmax(x: Table) -> Table:
    """Probabilities from logits."""
    e: Table = np.exp(x - x.max())
    return e / e.sum()


@click.command()
@click.option("--pairs", default=400, show_default=True, help="Synthetic pairs per row.")
@click.option("--vocabulary", default=64, show_default=True)
def main(pairs: int, vocabulary: int) -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    click.echo("entropy  TV(p,q)  " + "  ".join(f"{v:>22}" for v in VERIFIERS) + "   (child from q / favourite of q)")
    for scale, noise in PAIRS:
        found: dict[str, list[float]] = {}
        for _ in range(pairs):
            z = rng.gumbel(size=vocabulary) * scale
            p, q = softmax(z), softmax(z + rng.normal(size=vocabulary) * noise)
            favourite = np.eye(vocabulary)[q.argmax()]
            found.setdefault("H", []).append(float(-(p * np.log(p)).sum()))
            found.setdefault("TV", []).append(0.5 * float(np.abs(p - q).sum()))
            for v in VERIFIERS:
                found.setdefault(v, []).append(departure(v, p, q))
                found.setdefault(v + " favourite", []).append(departure(v, p, favourite))
        mean = {k: float(np.mean(x)) for k, x in found.items()}
        cells = [f"{mean[v]:.2f} / {mean[v + ' favourite']:.2f}".rjust(22) for v in VERIFIERS]
        click.echo(f"{mean['H']:7.1f}  {mean['TV']:7.2f}  " + "  ".join(cells))


if __name__ == "__main__":
    main()
