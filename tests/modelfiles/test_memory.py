"""What a model needs against what the machine has, on real headers and made-up machines."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from lcspec.config import ModelOptions
from lcspec.errors import ModelLoadError
from lcspec.llama import Context, Model
from lcspec.llama.lib import log_lines
from lcspec.modelfiles.kv_shape import KvShape, kv_shape
from lcspec.modelfiles.memory import LOOKED_UP, Memory, Need, check_memory, machine_memory, needed, read_memory
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.offload import layer_costs
from lcspec.profiles.attention import heads_of
from lcspec.session import open_session
from tests import tiny_gguf as tiny
from tests.running import options
from tests.tiny_families import FAMILIES, FF, HEAD, KV_HEADS, WIDTH, Net, write_family

GB = 10**9


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llama(tmp_path_factory.mktemp("m") / "llama.gguf")


def test_the_kv_cache_is_what_the_library_allocates(llama: Path) -> None:
    header = read_header(llama)
    prefix = f"{header.architecture}.attention."
    heads, kv = header.metadata[f"{prefix}head_count"], header.metadata[f"{prefix}head_count_kv"]
    assert isinstance(heads, int) and isinstance(kv, int)
    per_head = (header.embedding_length or 0) // heads
    shape = kv_shape(header)
    assert shape is not None and shape.elements == 2 * per_head * kv * (header.block_count or 0) > 0
    need = needed(header, ModelOptions(llama, ctx=1000, slots=3, kv_type="f16"))
    assert need.kv_cache == 3000 * shape.elements * 2
    assert need.weights == llama.stat().st_size
    assert needed(header, ModelOptions(llama, ctx=1000, slots=3, kv_type="q8_0")).kv_cache < need.kv_cache


@pytest.mark.model
@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen35", "mamba"])
@pytest.mark.parametrize("rollback", [0, 16])
def test_streams_are_one_more_than_slots(tmp_path: Path, family: str, rollback: int) -> None:
    """Where every slot has a cache of its own, there is one to pad with; without drafts recurrent models have none."""
    path = write_family(family, tmp_path / "m.gguf")
    wanted = ModelOptions(
        path, ctx=1024, slots=3, threads=1, gpu_layers=0, attention="fused_rows", streams=True, rollback=rollback
    )
    with Model.load(wanted) as model, log_lines() as lines, Context(model, wanted):
        pass
    found = sum(float(n) for line in lines for n in re.findall(r"KV buffer size =\s+([0-9.]+) MiB", line)) * 2**20
    # What one step adds to every cache is not counted: rather too little than too much.
    room = (1024 + 256) / 1024
    said = needed(read_header(path), wanted).kv_cache
    assert found / room - 2**20 * 0.01 <= said <= found + 2**20 * 0.01


MIB = 2**20
WITH_MTP = ("glm4moe", "step35", "mimo2", "hy_v3", "deepseek2", "qwen35", "bailingmoe3", "nemotron-h-moe", "deepseek32")


def allocated(lines: list[str]) -> tuple[float, float]:
    """Bytes of cells and of states, as the library tells them."""
    kinds = ("KV", "(?:RS|state)")
    found = (re.findall(rf"{kind} buffer size =\s+([0-9.]+) MiB", "\n".join(lines)) for kind in kinds)
    kv_cache, states = (MIB * sum(map(float, sizes)) for sizes in found)
    return kv_cache, states


@pytest.mark.model
@pytest.mark.parametrize(
    ("family", "rollback", "mtp"),
    [
        *((family, 0, False) for family in ("kimi-linear", "bailingmoe3", "deepseek2", "deepseek32", "deepseek4")),
        *((family, 0, False) for family in ("minimax-m3", "nemotron-h-moe", "glm4moe", "step35", "cohere2moe")),
        ("gemma3n", 0, False),
        *((family, rollback, False) for family in ("kimi-k3", "glm5-next", "qwen4exp") for rollback in (0, 16)),
        *((family, rollback, False) for family in ("plamo2", "minimax-01", "dots3note") for rollback in (0, 16)),
        ("deepseek4", 16, False),
        *((family, 16, True) for family in WITH_MTP),
    ],
)
def test_every_cell_is_counted_once(tmp_path: Path, family: str, rollback: int, mtp: bool) -> None:
    """Compressed cells, those of an indexer, and those of layers that only draft, which have their own context."""
    # Compressed cells may be a block more.
    check_cells(write_family(family, tmp_path / "m.gguf"), rollback, mtp, 1.1 if family == "deepseek4" else 1.0)


def switched(net: Net) -> None:
    """Makes a Llama a Granite that switches between two adapters of rank 4."""
    kv_width = KV_HEADS * HEAD
    sizes = {"attn_q": (WIDTH, WIDTH), "attn_k": (kv_width, WIDTH), "attn_v": (kv_width, WIDTH)}
    sizes |= {"attn_output": (WIDTH, WIDTH), "ffn_gate": (FF, WIDTH), "ffn_up": (FF, WIDTH), "ffn_down": (WIDTH, FF)}
    for block in ("blk.0", "blk.1"):
        joined = [net.tensors.pop(f"{block}.attn_{name}.weight") for name in "qkv"]
        net.constant(f"{block}.attn_qkv.weight", np.concatenate(joined))
        for name, (n_out, n_in) in sizes.items():
            net.constant(f"{block}.{name}.lora_a", np.zeros((3, 4, n_in)))
            net.constant(f"{block}.{name}.lora_b", np.zeros((3, n_out, 4)))


SWITCH = {"count": 2, "lora_rank": 4, "token_ids_activate": [70, 100], "token_ids_substitute": [71, 101]}


@pytest.mark.model
@pytest.mark.parametrize("architecture", ["nanbeige", "graniteswitch"])
def test_cells_of_layers_without_weights_are_counted(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers that run three times with cells of their own each time; and one that only chooses adapters."""
    monkeypatch.setitem(FAMILIES, architecture, replace(FAMILIES["llama"], architecture=architecture))
    if architecture == "nanbeige":
        path = write_family(architecture, tmp_path / "m.gguf", num_loops=3)
    else:
        keys = {f"adapters.{key}": value for key, value in SWITCH.items()}
        path = write_family(architecture, tmp_path / "m.gguf", change=switched, logit_scale=1.0, **keys)
    check_cells(path)
    header = read_header(path)
    assert header.layers == (6 if architecture == "nanbeige" else 3)
    assert len(layer_costs(header, ModelOptions(path)).weights) == header.layers


def check_cells(path: Path, rollback: int = 0, mtp: bool = False, blocks: float = 1.0) -> None:
    """What is said of a model's memory is what the library allocates."""
    wanted = options(path, ctx=2048, slots=3, rollback=rollback, mtp=mtp, kv_type="f16", max_width=16)
    with log_lines() as lines, open_session(wanted) as session:
        if mtp:
            session.engine.drafting.make(["mtp"])
    need, (kv_cache, states) = needed(read_header(path), wanted), allocated(lines)
    # What one step adds to every cache is not counted: rather too little than too much.
    room = (2048 + 256) / 2048 if session.engine.context.memory.streams else (3 * 2048 + 256) / (3 * 2048)
    assert kv_cache / (room * blocks) - MIB * 0.02 <= need.kv_cache <= kv_cache + MIB * 0.02 and kv_cache > 0
    assert need.states == pytest.approx(states, abs=MIB * 0.02)


@pytest.mark.parametrize("family", ["gemma4", "qwen4exp"])
def test_a_large_table_that_is_read_by_rows_needs_no_memory(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_family(family, tmp_path / "m.gguf")
    header, size = read_header(path), path.stat().st_size
    assert needed(header, ModelOptions(path)).weights == size, "a small one is read as a whole"
    monkeypatch.setattr("lcspec.modelfiles.memory.LARGE_TABLE", 20_000)
    table = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == LOOKED_UP)
    assert needed(header, ModelOptions(path)).weights == size - int(table.n_bytes) < size - 20_000
    plain = write_family("llama", tmp_path / "llama.gguf")
    assert needed(read_header(plain), ModelOptions(plain)).weights == plain.stat().st_size


def test_a_figure_for_every_layer(tmp_path: Path, llama: Path) -> None:
    path = tmp_path / "layers.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in tiny.byte_bpe_vocab().metadata().items():
        tiny._add(writer, key, value)
    writer.add_block_count(3)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv([2, 0, 1])
    writer.add_tensor("token_embd.weight", np.zeros((288, 64), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shape = kv_shape(read_header(path))
    assert shape == KvShape((4, 4, 4), (2, 0, 1), 16, 16) and shape.elements == 3 * 2 * 16
    assert heads_of(read_header(path)) is None, "attention is timed for layers that are alike"


def test_a_recurrent_state_is_left_to_the_library(tmp_path: Path) -> None:
    path = tiny.write_recurrent(tmp_path / "r.gguf")
    assert kv_shape(read_header(path)) is None
    assert needed(read_header(path), ModelOptions(path, ctx=1000)).kv_cache == 0


def test_only_what_cannot_work_is_refused() -> None:
    memory = Memory(total=16 * GB, free=6 * GB)
    assert Need(15 * GB, 1 * GB, 1, 8192).fits(memory)  # the file is mapped: others give way
    assert Need(1 * GB, 6 * GB, 1, 8192).fits(memory)
    assert not Need(1 * GB, 7 * GB, 1, 8192).fits(memory)
    assert not Need(17 * GB, 0, 1, 8192).fits(memory)


def test_the_refusal_has_the_numbers_and_says_what_to_do(llama: Path) -> None:
    options = ModelOptions(llama, ctx=100_000, slots=64)
    need = needed(read_header(llama), options)
    assert check_memory(options, memory=Memory(2 * need.kv_cache, 2 * need.kv_cache)) == need
    with pytest.raises(ModelLoadError, match=r"64 x 100000 tokens.*--slots.*--ctx"):
        check_memory(options, memory=Memory(need.kv_cache // 2, need.kv_cache // 2))
    with pytest.raises(ModelLoadError, match="use a smaller --ctx"):
        check_memory(replace(options, slots=1), memory=Memory(1, 1))


def test_a_draft_model_counts_and_a_missing_one_is_left_to_its_loading(llama: Path, tmp_path: Path) -> None:
    plenty = Memory(GB * 100, GB * 100)
    options = ModelOptions(llama, ctx=512)
    assert check_memory(options, llama, plenty).weights == 2 * check_memory(options, None, plenty).weights
    assert check_memory(options, tmp_path / "nothing.gguf", plenty) == check_memory(options, None, plenty)


def test_this_machine_has_memory_for_a_tiny_model(llama: Path) -> None:
    memory = machine_memory()
    assert memory is None or 0 < memory.free <= memory.total
    check_memory(ModelOptions(llama))


def test_linux_s_files_and_a_container_s_limit(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 16000 kB\nMemFree: 10 kB\nMemAvailable: 9000 kB\nSwapFree: 1000 kB\nOdd\n")
    whole = Memory(17000 * 1024, 10000 * 1024, swap=1000 * 1024)
    assert read_memory(meminfo, tmp_path) == whole
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5000\n")
    (tmp_path / "memory.stat").write_text("anon 4000\ninactive_file 600\nactive_file 300\n")
    assert read_memory(meminfo, tmp_path) == whole
    (tmp_path / "memory.max").write_text("8000\n")
    assert read_memory(meminfo, tmp_path) == Memory(8000, 3900)
    (tmp_path / "memory.max").write_text(f"{9500 * 1024 + 4100}\n")
    assert read_memory(meminfo, tmp_path) == Memory(9500 * 1024 + 4100, 9500 * 1024, swap=500 * 1024)
    assert read_memory(tmp_path / "nowhere", tmp_path) is None
