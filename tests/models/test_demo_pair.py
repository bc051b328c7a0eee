"""The bundled pair: small enough, documented, one vocabulary, and a draft that agrees with its target."""

from __future__ import annotations

import json
from pathlib import Path

from lcspec.config import DrafterSpec, ModelOptions, SpeculationParams
from lcspec.engine.events import Finished
from lcspec.engine.request import Request
from lcspec.modelfiles.demo import DEMO_DRAFT, DEMO_TARGET, demo_path
from lcspec.modelfiles.modelfile import read_header, read_vocabulary
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import open_session


def test_sizes_and_metadata() -> None:
    """At most 40 MB and 4 MB, with licence and chat template."""
    target, draft = demo_path(DEMO_TARGET), demo_path(DEMO_DRAFT)
    assert target.stat().st_size <= 40e6
    assert draft.stat().st_size <= 4e6
    for path in (target, draft):
        header = read_header(path)
        assert header.architecture == "llama"
        assert header.licence
        assert header.chat_template
        assert 4000 <= header.n_vocab <= 8192
    assert read_vocabulary(target) == read_vocabulary(draft)


def test_card_reports_what_was_measured() -> None:
    """The model card's figures are those of the report stage, and the draft agrees with the target."""
    folder = Path(demo_path(DEMO_TARGET)).parent
    figures = json.loads((folder / "figures.json").read_text())
    card = (folder / "README.md").read_text()
    assert "demonstration" in card
    value = figures["greedy_agreement"]["dialogue"]["agreement"]
    assert value >= 0.8
    assert str(value) in card


def test_the_draft_is_worth_asking() -> None:
    """On dialogue most of its tokens are accepted."""
    options = ModelOptions(demo_path(DEMO_TARGET), ctx=512, threads=1)
    with open_session(options, demo_path(DEMO_DRAFT)) as session:
        ids, _ = session.chat_ids([{"role": "user", "content": "Hi! I'd like to order a latte, please."}])
        request = Request(
            ids, SamplingParams(temperature=0.0), SpeculationParams((DrafterSpec("model"),)), 96, ignore_end=True
        )
        finished = [e for e in session.engine.run(request) if isinstance(e, Finished)][0]
    assert finished.stats.drafted > 20
    assert finished.stats.accepted / finished.stats.drafted > 0.6
    assert finished.stats.mean_acceptance_length > 2
