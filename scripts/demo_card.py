"""The model card of the demo pair, rendered from measured figures."""

from __future__ import annotations

from demo_sources import SOURCES

CARD = """# The demo models

Two very small language models, bundled so that lcspec can be tried, demonstrated and tested without a download:

| | file | parameters | size |
|---|---|---|---|
{files}

**They are a demonstration and not useful as assistants.** The target holds a short on-topic exchange (ordering a
coffee, small talk), attempts a word problem in the right form and usually with the wrong result, and writes lines
that look like Python and soon repeat themselves. It knows no facts, and what it says must not be trusted. The draft
exists only to propose tokens to the target. At this size one decode of the target costs little more than the work
around it, so the pair shows *how* speculation behaves (acceptance, trees, identical text) and says nothing about the
speed-up a real model will see.

## Architecture

Llama (RMSNorm, rotary positions, SwiGLU, grouped-query attention), output matrix not tied to the embedding, Q8_0
weights.

| | layers | width | heads | KV heads | FFN | vocabulary | context |
|---|---|---|---|---|---|---|---|
{shapes}

Both share one byte-level BPE tokenizer of {vocab} entries (pre-tokenizer `qwen2`: digits one by one), trained on the
same texts. It takes any text; English and Python are cheap and everything else falls back to bytes. Chats use the
ChatML template in the files, without a system prompt; `<|im_end|>` ends a turn. llama.cpp and the trained tokenizer
agree on every probe text: {parity}. The largest difference between llama.cpp's logits (float32 weights) and torch's is
{difference}.

## Training

On two CPU cores, by the clock, with other work on the machine:

| | steps | tokens | minutes | how |
|---|---|---|---|---|
{training}

The target saw about three quarters dialogue, a quarter Python source and a little prose, in rows of 512 tokens and,
in the last fifth of the time, 1024. The draft learnt the target's distributions (KL divergence), half on the same
texts and half on text the target had sampled itself. Both runs were interrupted and resumed with a few minutes more.
One dialogue in 40 and one source file in 30 were held out by hash.

## Figures

Measured by the `report` stage on the quantized files through llama.cpp, and kept in `figures.json`.

Validation loss (nats per token) on held-out text, over the two halves of rows of 1024 tokens:

| | text | tokens | {halves} |
|---|---|---|---|---|
{losses}

Greedy agreement: the share of the target's own greedy tokens, in answers to held-out prompts, that are the draft's
first choice; and the tokens emitted per target step when the draft proposes chains of {chain}:

| prompts | tokens | agreement | mean acceptance length |
|---|---|---|---|
{agreement}

## Samples

Greedy, from the quantized target, unedited.

{samples}

## Sources and licences

The models are released under the licence of lcspec (MIT). They were trained on:

| source | by | part | licence |
|---|---|---|---|
{sources}

Dialogues were reformatted into chat turns, placeholders such as "[user 1's name]" replaced by invented names,
calculator notes removed, functions of the standard library turned into completion requests, and a few turns in which
the model says what it is were added. CC BY 4.0: <https://creativecommons.org/licenses/by/4.0/>.

## Reproducing

With `torch`, `tokenizers`, `numpy` in one environment, and `llama-cpp-python`, `gguf`, `numpy` in the one named by
`--llama-python` (they may be the same). `DATA` holds `train/dialogues.jsonl` (one object a line: `source`, `licence`,
`messages`) made from the sources above and `train/tinyshakespeare.txt`; the Python source is the interpreter's own.

    python scripts/train_demo.py all --data DATA --work WORK --out models \\
        --target-minutes {target_minutes:.0f} --draft-minutes {draft_minutes:.0f} --threads 2 --llama-python python

Schedules follow the clock, so figures vary with the machine; the stages `tokenizer`, `target`, `draft`, `export` and
`report` also run one by one and resume where they stopped.
"""


def table(rows: list[list[object]]) -> str:
    """The body of a Markdown table."""
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def render(figures: dict) -> str:
    """The text of the card."""
    pair = {name: figures[name] for name in ("target", "draft")}
    agreement = figures["greedy_agreement"]
    groups = [("dialogue, all", agreement["dialogue"])]
    groups += [(f"dialogue: {source}", part) for source, part in agreement["dialogue_by_source"].items()]
    groups += [("code", agreement["code"])]
    losses = [(n, kind, part) for n, m in pair.items() for kind, part in m["validation_loss"].items()]
    method = {"target": "next-token loss", "draft": "distilled from the target"}
    return CARD.format(
        files=table(
            [[n, f"`{m['file']}`", f"{m['parameters']:,}", f"{m['bytes'] / 1e6:.1f} MB"] for n, m in pair.items()]
        ),
        shapes=table(
            [
                [
                    n,
                    *(m["shape"][key] for key in ("layers", "width", "heads", "kv_heads", "ffn", "vocab")),
                    m["context"],
                ]
                for n, m in pair.items()
            ]
        ),
        vocab=pair["target"]["shape"]["vocab"],
        parity="yes" if figures["tokenizer_matches_llama_cpp"] else "no",
        difference=max(m["largest_logit_difference_from_torch"] for m in pair.values()),
        training=table(
            [
                [n, m["training"]["steps"], f"{m['training']['tokens']:,}", m["training"]["minutes"], method[n]]
                for n, m in pair.items()
            ]
        ),
        halves=" | ".join(key for key in losses[0][2] if key != "tokens"),
        losses=table([[n, kind, *part.values()] for n, kind, part in losses]),
        chain=agreement["chain"],
        agreement=table([[n, p["tokens"], p["agreement"], p["mean_acceptance_length"]] for n, p in groups]),
        samples=render_samples(figures["samples"]),
        sources=table([[f"[{s.name}]({s.url})", s.author, s.part, s.licence] for s in SOURCES]),
        target_minutes=pair["target"]["training"]["minutes"],
        draft_minutes=pair["draft"]["training"]["minutes"],
    )


def render_samples(samples: dict) -> str:
    """Every chat and every code continuation as a block of plain text."""
    chats = ["\n".join(f"{turn['role']}> {turn['content']}" for turn in chat) for chat in samples["chats"]]
    code = [f"{part['prompt']}[the prompt ends here]{part['continuation']}" for part in samples["code"]]
    return "\n\n".join(f"````text\n{text.rstrip()}\n````" for text in chats + code)
