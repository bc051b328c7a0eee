"""Draw docs/lens.svg: a real answer of the bundled pair, its tokens coloured by who drafted them."""

from __future__ import annotations

import re
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from lcspec.config import ModelOptions
from lcspec.engine.events import Finished, Tokens
from lcspec.engine.request import Request
from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET, demo_path
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import open_session, parse_speculation

COLOURS = {"model": "green", "ngram": "cyan", "suffix": "magenta"}
PROMPT = "Hi! I'd like to order a large iced latte, please."


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("docs/lens.svg"), show_default=True)
@click.option("--prompt", default=PROMPT, show_default=True)
@click.option("-n", "n_tokens", default=96, show_default=True)
def main(out: Path, prompt: str, n_tokens: int) -> None:
    """Write the picture."""
    console = Console(record=True, width=92, highlight=False)
    console.print(f'$ lcspec generate --chat --lens --speculate ngram,model -p "{prompt}"')
    text = Text()
    finished = None
    with open_session(ModelOptions(demo_path(DEMO_TARGET), ctx=512), demo_path(DEMO_DRAFT)) as session:
        ids, stop = session.chat_ids([{"role": "user", "content": prompt}])
        speculation = parse_speculation("ngram,model")
        request = Request(ids, SamplingParams(temperature=0.0), speculation, n_tokens, stop, ignore_end=True)
        for event in session.engine.run(request):
            if isinstance(event, Tokens):
                for piece in event.pieces:
                    text.append(piece.text, COLOURS.get(piece.drafter or "", "default"))
            elif isinstance(event, Finished):
                finished = event
    assert finished is not None
    console.print(text)
    legend = Text("drafted by: ")
    for name, colour in COLOURS.items():
        if name in finished.stats.by_drafter:
            legend.append(name + " ", colour)
    legend.append("  plain: the target's own choice", "default")
    console.print(legend)
    stats = finished.stats
    console.print(
        f"{finished.completion_tokens} tokens in {stats.target_steps} target steps, "
        f"{stats.accepted} of {stats.drafted} drafted tokens accepted"
    )
    svg = console.export_svg(title="lcspec")
    # Rich links a font on the network; any monospaced font of the viewer's will do.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    out.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
