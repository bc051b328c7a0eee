"""The files that lcspec reads: sound ones to start from, and everything that is done with one before it is trusted."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import numpy as np

from lcspec import disk_cache
from lcspec.answers.text import Piece
from lcspec.config import ModelOptions, load_toml
from lcspec.drafters.datastore import Datastore, DatastoreWriter
from lcspec.drafters.medusa.file import HeadsFile, read_heads, write_heads
from lcspec.drafters.medusa.network import Sizes, initial
from lcspec.modelfiles.library import Found, describe
from lcspec.modelfiles.memory import needed
from lcspec.modelfiles.modelfile import byte_coverage, read_header
from lcspec.modelfiles.offload import layer_costs
from lcspec.profiles.cost_curve import CostCurve
from lcspec.profiles.exactness import Certificate
from lcspec.spec.tree_shapes import Shape
from lcspec.tui.settings import SettingsFile
from lcspec.tui.settings.schema import template
from lcspec.tui.store import Store
from tests import tiny_gguf as tiny


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        file_name: what it is called.
        text: whether it is text.
        seeds: writes sound files into a folder.
        read: everything that is done with one.
    """

    file_name: str
    text: bool
    seeds: Callable[[Path], list[Path]]
    read: Callable[[Path], object]


# --- models -----------------------------------------------------------------------------------------------------------


def _models(folder: Path) -> list[Path]:
    makers = {"llama": tiny.write_llama, "hybrid": tiny.write_hybrid, "window": tiny.write_sliding_window}
    return [Path(write(folder / f"{name}.gguf")) for name, write in makers.items()]  # type: ignore[operator]


def _read_model(path: Path) -> None:
    os.environ["LCSPEC_CACHE_DIR"] = str(path.parent / "cache")
    describe(Found(path, "folder", path.name, path.stat().st_size))
    header = read_header(path)
    byte_coverage(path)
    options = ModelOptions(path, ctx=512)
    needed(header, options)
    layer_costs(header, options)


# --- settings ---------------------------------------------------------------------------------------------------------


def _settings(folder: Path) -> list[Path]:
    lines = (line[1:] if line[:1] == "#" and line[:2] != "# " else line for line in template().splitlines())
    path = folder / "full.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return [path]


def _config(folder: Path) -> list[Path]:
    path = folder / "config-seed.toml"
    path.write_text('[generate]\ntemperature = 0.5\nspeculate = "off"\n[serve]\nport = 8081\nalias = ["a", "b"]\n')
    return [path]


# --- what was measured ------------------------------------------------------------------------------------------------


def _cached(value: object) -> Callable[[Path], list[Path]]:
    def seeds(folder: Path) -> list[Path]:
        path = folder / "seed.json"
        path.write_text(json.dumps({"format": disk_cache.FORMAT, "value": value}))
        return [path]

    return seeds


def _loaded(path: Path) -> object:
    """The value that the cache finds in a file."""
    os.environ["LCSPEC_CACHE_DIR"] = str(path.parent.parent)
    return disk_cache.load(path.parent.name, path.stem)


def _read_curve(path: Path) -> None:
    try:
        curve = CostCurve.from_dict(_loaded(path))
    except ValueError:
        return  # it is measured again
    for width in range(1, 40):
        curve.seconds(width, 100)


def _read_certificate(path: Path) -> None:
    try:
        certificate = Certificate.from_dict(_loaded(path))
    except ValueError:
        return
    assert certificate.widths


# --- drafters' files --------------------------------------------------------------------------------------------------


def _heads(folder: Path) -> list[Path]:
    rng = np.random.default_rng(1)
    paths = []
    for rank, embed in ((0, 0), (4, 8)):
        sizes = Sizes(heads=2, state=16, hidden=8, embed=embed, rank=rank, vocab=32)
        params = initial(sizes, rng.standard_normal((32, 16)).astype(np.float32), 1.0, rng)
        heads = HeadsFile(
            sizes=sizes,
            params=params,
            tokens=np.arange(32, dtype=np.int32),
            scale=1.0,
            scales=np.ones(2),
            table=np.full((2, 4), 0.25),
            shape=Shape((-1, 0, 0, 1), (-1, 0, 1, 0)),
            fingerprint="f" * 16,
            vocabulary="v" * 16,
            n_vocab=288,
            quantization="F32",
            target="tiny",
        )
        paths.append(folder / f"heads{rank}.gguf")
        write_heads(paths[-1], heads)
    return paths


def _datastores(folder: Path) -> list[Path]:
    path = folder / "seed.store"
    writer = DatastoreWriter(path, "v" * 16, 288, "tiny", shard_tokens=300)
    for i in range(4):
        writer.add([(i * 7 + j * j) % 288 for j in range(200)])
    writer.close()
    return [path]


def _read_datastore(path: Path) -> None:
    store = Datastore(path)
    try:
        for i in range(8):
            store.lookup([(i * 7 + j * j) % 288 for j in range(10)], min_match=1, ahead=8, most=8)
    finally:
        store.close()


# --- chats ------------------------------------------------------------------------------------------------------------


def _chats(folder: Path) -> list[Path]:
    path = folder / "seed.db"
    with Store(path) as store:
        for i in range(3):
            chat = store.create(title=f"chat {i}")
            chat.add_user("a question " * 20)
            answer = chat.begin_answer(model="m")
            answer.append([Piece("an answer " * 30, "ngram")], 1)
            answer.finish()
        store.flush(30)
    return [path]


def _read_chats(path: Path) -> None:
    for name in ("-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)
    with Store(path) as store:
        for summary in store.chats():
            store.load(summary.info.id)
        store.search("question")
        chat = store.create()
        chat.add_user("still works")
        store.flush(5)


KINDS = {
    "gguf": Kind("model.gguf", False, _models, _read_model),
    "settings": Kind("chat.toml", True, _settings, lambda path: SettingsFile(path).settings),
    "config": Kind("config.toml", True, _config, load_toml),
    "curves": Kind(
        "curve.json",
        True,
        _cached(CostCurve.flat(0.01, 8).as_dict()),
        _read_curve,
    ),
    "certificates": Kind(
        "certificate.json",
        True,
        _cached(Certificate(((1, 2, 3), (4, 8)), 320, True, True).as_dict()),
        _read_certificate,
    ),
    "heads": Kind("heads.gguf", False, _heads, read_heads),
    "datastore": Kind("text.store", False, _datastores, _read_datastore),
    "chats": Kind("chats.db", False, _chats, _read_chats),
}
