"""Which file may draft for which, told by headers alone: before anything is loaded. No llama_cpp.

`check_draft` refuses what cannot draft and says why. A draft model with another vocabulary is none of its business:
it drafts through text (docs/drafters.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from lcspec.errors import LcspecError, ModelFileError, UnsupportedModel
from lcspec.modelfiles.gguf_header import MetadataArray, Scalar, read_gguf
from lcspec.modelfiles.identity import fingerprint
from lcspec.modelfiles.mtp_layers import mtp_only

Metadata = Mapping[str, Scalar | MetadataArray]

# llama.cpp's architectures that read a text as a whole. Their files usually say so as well (attention.causal).
ENCODERS = frozenset(
    {
        *("bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert"),
        *("eurobert", "gemma-embedding", "llama-embed", "t5", "t5encoder"),
    }
)
DIFFUSION = frozenset({"dream", "llada", "llada-moe", "rnd1"})
# Parts of what turns text into speech: the tokens that the library takes from them stand for sound, or for nothing.
SPEECH = frozenset({"pockettts", "qwen3tts"})
# Parts of a speculative pair that are no models of their own.
HEADS = {
    "eagle3": "it is an EAGLE-3 head, which drafts for the one model it was made for",
    "dflash": "it is a DFlash head, which this version cannot use",
    "gemma4-assistant": "it is a companion of Gemma 4, which drafts for the one model it was made for",
    "lcspec-heads": "it holds Medusa heads: give it to --heads",
}
NO_DRAFTS = ENCODERS | DIFFUSION | SPEECH | HEADS.keys()
# Recurrent states that the library (0.3.36) can take back; all others it cannot.
TAKEN_BACK = frozenset(
    {
        *("lfm2", "lfm2moe", "qwen35", "qwen35moe", "qwen4exp", "nemotron_h", "nemotron_h_moe", "deepseek4"),
        *("glm5-next", "kimi-k3", "bailingmoe3"),
    }
)
# Written by `lcspec draft distil`: below it, what a draft was trained for (`fingerprint`: see modelfiles/identity.py).
DISTILLED = "lcspec.distil"
# The `pooling_type` of models that score pairs of texts.
RANK = 4
_STATE_KEYS = ("ssm.state_size", "wkv.head_size", "kda.head_dim", "shortconv.l_cache")
# Architectures whose state has no such key.
_WITH_STATE = frozenset({"minimax-01"})


def check_draft(target: Path, draft: Path) -> None:
    """Refuse a file that cannot draft, whatever the target. A file that cannot be read is left to its loading.

    Raises:
        UnsupportedModel: the message says what it is and what to use.
    """
    with contextlib.suppress(ModelFileError):
        problem = why_not(draft)
        if problem is not None:
            raise UnsupportedModel(
                f"{draft.name} cannot draft for {target.name}: {problem}; pick a small text-generation model of the "
                "same family, or leave --draft out (n-gram drafting needs none)"
            )


def why_not(draft: Path) -> str | None:
    """Why a file cannot draft, as the end of a sentence; None if its header knows no reason.

    Raises:
        ModelFileError: it cannot be read.
    """
    part = part_of_a_pair(draft)
    if part is not None:
        return part
    contents = read_gguf(draft)
    architecture = str(contents.metadata.get("general.architecture"))
    if reads_whole(contents.metadata):
        return f"it is an encoder ({architecture}), which generates no text"
    if architecture in DIFFUSION:
        return f"it is a diffusion model ({architecture}), which does not write from left to right"
    if architecture in SPEECH:
        return f"it makes speech ({architecture}), and no text"
    if contents.metadata.get(f"{architecture}.pooling_type"):
        return "it was made for embeddings, not for writing"
    return None


def reads_whole(metadata: Metadata) -> bool:
    """Whether a model of this header is an encoder: each token of a text sees those behind it as well."""
    architecture = str(metadata.get("general.architecture"))
    return architecture in ENCODERS or metadata.get(f"{architecture}.attention.causal") is False


def ranks(metadata: Metadata) -> bool:
    """Whether a model of this header is a cross-encoder: it scores a query and a document that it reads at once."""
    return metadata.get(f"{metadata.get('general.architecture')}.pooling_type") == RANK


def part_of_a_pair(path: Path) -> str | None:
    """Why a file writes nothing by itself, as the end of a sentence: it only drafts for another. None if it may.

    Raises:
        ModelFileError: it cannot be read.
    """
    contents = read_gguf(path)
    if mtp_only(contents):
        return "it holds the layers for multi-token prediction only, not the model they belong to"
    return HEADS.get(str(contents.metadata.get("general.architecture")))


def distilled_from(draft: Path, target: Path) -> bool:
    """Whether a draft was distilled from this very model, in any quantization of it. False if either is unreadable."""
    try:
        trained_for = read_gguf(draft).metadata.get(f"{DISTILLED}.fingerprint")
        return isinstance(trained_for, str) and trained_for == fingerprint(target)
    except (LcspecError, OSError):
        return False


def can_be_taken_back(metadata: Metadata) -> bool:
    """Whether a model of this header can forget drafted tokens: attention always, recurrent states some."""
    architecture = str(metadata.get("general.architecture"))
    recurrent = architecture in _WITH_STATE or any(f"{architecture}.{key}" in metadata for key in _STATE_KEYS)
    return not recurrent or architecture in TAKEN_BACK
