"""Whether a LoRA adapter fits a model, told by headers alone. No llama_cpp."""

from __future__ import annotations

from pathlib import Path

from lcspec.errors import ModelFileError
from lcspec.modelfiles.gguf_header import read_gguf

PARTS = (".lora_a", ".lora_b")


def check_lora(model: Path, lora: Path) -> None:
    """Refuse a file that is no adapter for this model.

    Raises:
        ModelFileError: the message says what it is and what to use.
    """
    contents = read_gguf(lora)
    metadata = contents.metadata
    kind = (metadata.get("general.type"), metadata.get("adapter.type"))
    if kind != ("adapter", "lora"):
        raise ModelFileError(f"{lora} is no LoRA adapter: give --lora a GGUF that convert_lora_to_gguf made")
    target = read_gguf(model)
    ours, theirs = (m.get("general.architecture") for m in (target.metadata, metadata))
    if ours != theirs:
        raise ModelFileError(
            f"{lora.name} was made for a model of architecture {theirs}, and {model.name} is {ours}: use the model it "
            "was made for"
        )
    if target.metadata.get("split.count"):  # the other parts have the rest: the library looks
        return
    shapes = {tensor.name: tensor.shape for tensor in target.tensors}
    for tensor in contents.tensors:
        base = next((tensor.name.removesuffix(part) for part in PARTS if tensor.name.endswith(part)), None)
        if base is None:
            continue
        if base not in shapes:
            raise ModelFileError(f"{lora.name} changes {base}, which {model.name} does not have: use its own model")
        wanted = shapes[base][0] if tensor.name.endswith(PARTS[0]) else shapes[base][1]
        found = tensor.shape[0] if tensor.name.endswith(PARTS[0]) else tensor.shape[1]
        if wanted != found and base != "token_embd.weight":  # whose parts are the other way round
            raise ModelFileError(
                f"{lora.name} was made for a model of another size than {model.name}: {base} has {wanted} where the "
                f"adapter has {found}"
            )
