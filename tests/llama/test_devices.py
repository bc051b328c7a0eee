"""Devices for real: the CPU stands in for a GPU, since ggml knows it as a device too."""

from __future__ import annotations

import functools
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lcspec.cli import cli
from lcspec.config import DraftFiles, ModelOptions
from lcspec.engine.engine import Engine
from lcspec.errors import LcspecError, ModelLoadError, UsageError
from lcspec.llama import Context, Model, devices, model
from lcspec.llama.capabilities import capabilities
from lcspec.llama.devices import Device, Placed
from lcspec.llama.fitting import compute_buffers, fitted, rehearse, reserved_for_drafts
from lcspec.llama.lib import C, log_lines
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.offload import MARGIN_LEAST, layer_costs
from lcspec.placement import Placement
from lcspec.session import make_engine, open_session
from tests import forks
from tests import tiny_gguf as tiny
from tests.running import answer, options, request

pytestmark = pytest.mark.model

ON_CPU = Placement(devices=("CPU",))


@pytest.fixture(scope="module")
def deep(folder: Path) -> Path:
    """Eight layers."""
    return tiny.write_llama(folder / "deep.gguf", n_layer=8)


def placed(path: Path, layers: int | None = None, placement: Placement = ON_CPU, **changes: Any) -> ModelOptions:
    """Without repacked weights, which a device has not."""
    return options(path, **{"repack": False, "gpu_layers": layers, "placement": placement, **changes})


def text_of(given: ModelOptions, draft: Path | None = None) -> list[int]:
    with open_session(given, draft) as session:
        speculate = "off" if draft is None else "model"
        return answer(session.engine, request(session.prompt_ids("the cat and the dog"), speculate, n=24)).ids


def cpu_with(free: int) -> Device:
    found = next(d for d in devices.devices() if d.kind == "CPU")
    return replace(found, free=free)


def test_the_devices_there_are() -> None:
    found = devices.devices()
    assert any(d.kind == "CPU" and d.memory >= d.free > 0 and d.handle for d in found)
    assert capabilities().devices == tuple(found)
    assert capabilities().gpu == any(d.kind in devices.GPUS for d in found)
    done = CliRunner().invoke(cli, ["doctor", "--json"])
    told = json.loads(done.output)["devices"]
    assert [d["name"] for d in told] == [d.name for d in found] and "handle" not in told[0]


@pytest.mark.parametrize("layers", [0, 1, 3, 9, -1])
def test_layers_on_a_device_give_the_same_text(deep: Path, layers: int) -> None:
    with log_lines() as lines:
        text = text_of(placed(deep, layers))
    there = sum("assigned to device CPU" in line for line in lines)
    assert there, "the library says where each layer went"
    told = next((line for line in lines if "layers to GPU" in line), None)  # only a build for GPUs says so
    assert told is None or layers == 0 or f"offloaded {9 if layers < 0 else layers}/9 " in told
    assert text == text_of(options(deep, repack=False))


@pytest.mark.parametrize(
    "placement",
    [
        replace(ON_CPU, kv_offload=False),
        replace(ON_CPU, mmap=False),
        replace(ON_CPU, mmap=True, mlock=True),
        replace(ON_CPU, overrides=((r"\.ffn_(up|down)", "CPU"),)),
        replace(ON_CPU, tensor_split=(2.0,)),
        replace(ON_CPU, split_mode="none"),
        Placement(devices=()),
    ],
)
def test_every_placement_loads_and_writes_the_same(deep: Path, placement: Placement) -> None:
    assert text_of(placed(deep, None, placement)) == text_of(options(deep, repack=False))


def test_the_library_is_told(deep: Path) -> None:
    """The fields of the library's parameters, as it reads them."""
    wanted = Placement(("CPU",), 3, "row", (2.0, 1.0), (("a.b", "CPU"), ("c", "CPU")), mmap=False, mlock=True)
    there = devices.match(replace(placed(deep), placement=replace(wanted, tensor_split=())), devices.devices(), [])
    params = C.llama_model_default_params()
    kept = there.into(params, wanted, 5)
    assert (params.n_gpu_layers, params.main_gpu, params.split_mode, params.load_mode) == (5, 3, 2, 2)
    assert list(params.tensor_split[:3]) == [2.0, 1.0, 0.0]
    handles, _, table = kept
    assert params.devices and handles[0] == there.devices[0].handle and handles[1] is None
    assert [row.pattern for row in table] == [b"a.b", b"c", None] and table[0].buft
    for placement, mode in ((Placement(mmap=True), 1), (Placement(mlock=True), 3), (Placement(), -1)):
        params = C.llama_model_default_params()
        there.into(params, placement, 0)
        assert params.load_mode == mode


def test_weights_that_are_overridden_lie_there(deep: Path) -> None:
    with log_lines() as lines, Model.load(placed(deep, 0, Placement(overrides=((r"blk\.7\.ffn_up", "CPU"),)))):
        pass
    assert any("blk.7.ffn_up" in line and "overridden" in line for line in lines)


# --- how many layers --------------------------------------------------------------------------------------------------


def test_the_library_says_what_a_computation_takes(deep: Path) -> None:
    given, laid_out = placed(deep), functools.partial(model._rehearsed, read_header(deep))
    found = rehearse(devices.place(given), given, laid_out)
    assert found["CPU"] > 1 << 16
    longer = replace(given, batch=2048, max_width=256)
    assert rehearse(devices.place(longer), longer, laid_out)["CPU"] > found["CPU"]


def test_lines_of_the_log() -> None:
    lines = [
        "sched_reserve:      CUDA0 compute buffer size =   304.75 MiB",
        "sched_reserve:      CUDA0 compute buffer size =   100.00 MiB",
        "sched_reserve:  CUDA_Host compute buffer size =    24.01 MiB",
        "llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB",
    ]
    assert compute_buffers(lines) == {"CUDA0": int(304.75 * (1 << 20)), "CUDA_Host": int(24.01 * (1 << 20))}
    assert compute_buffers([]) == {}


def with_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """The device has so much free memory."""
    real = devices.place

    def place(given: ModelOptions, workers: Any = ()) -> Placed:
        return replace(real(given, workers), devices=(cpu_with(free),))

    monkeypatch.setattr(model, "place", place)


def test_as_many_layers_as_fit(deep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = placed(deep)
    with Model.load(given) as whole:
        assert whole.gpu_layers == -1
    costs = layer_costs(whole.header, given)
    compute = rehearse(devices.place(given), given, functools.partial(model._rehearsed, whole.header))["CPU"]
    fixed = compute + MARGIN_LEAST
    for layers in (0, 1, 4, 8):
        with_free(monkeypatch, fixed + sum(costs.of(il) for il in range(costs.count - layers, costs.count)))
        with Model.load(given) as loaded:
            assert loaded.gpu_layers == layers
        with Model.load(given, reserved=costs.of(0)) as loaded:
            assert loaded.gpu_layers < max(1, layers), "a draft model wants some of it"
    with_free(monkeypatch, 0)
    with Model.load(given) as loaded:
        assert loaded.gpu_layers == 0


def test_what_drafts_will_want(deep: Path, llama_draft: Path) -> None:
    given = placed(deep)
    one = reserved_for_drafts(given, [llama_draft])
    assert one > llama_draft.stat().st_size and reserved_for_drafts(given, [llama_draft] * 2) == 2 * one
    assert reserved_for_drafts(given, [Path("missing.gguf")]) == 0
    assert reserved_for_drafts(replace(given, gpu_layers=0), [llama_draft]) == 0
    assert reserved_for_drafts(replace(given, placement=Placement(draft_gpu_layers=0)), [llama_draft]) == 0
    assert reserved_for_drafts(replace(given, placement=Placement(draft_devices=())), [llama_draft]) == 0


def test_fewer_layers_when_the_context_does_not_fit(deep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def make(loaded: Model) -> Engine:
        tried.append(loaded.gpu_layers)
        if not 0 <= loaded.gpu_layers <= 4:
            raise ModelLoadError("no memory")
        return make_engine(loaded, options(deep))

    loaded, engine = fitted(Model.load(placed(deep)), make, Model.load)
    with loaded, engine:
        assert tried == [-1, 6, 4] and loaded.gpu_layers == 4
    for layers in (9, -1):  # what was asked for is not changed behind anybody's back
        with pytest.raises(ModelLoadError, match="no memory"):
            fitted(Model.load(placed(deep, layers)), make, Model.load)


def test_a_context_that_never_fits_is_an_error(deep: Path) -> None:
    tried: list[Model] = []

    def make(loaded: Model) -> Context:
        tried.append(loaded)
        raise ModelLoadError("no memory")

    with pytest.raises(ModelLoadError, match="no memory"):
        fitted(Model.load(placed(deep)), make, Model.load)
    assert tried[-1].gpu_layers == 0 and all(m.handle is None for m in tried), "all of them are closed"

    def fail(loaded: Model) -> Context:
        tried.append(loaded)
        raise LcspecError("something else")

    tried.clear()
    with pytest.raises(LcspecError, match="something else"):
        fitted(Model.load(placed(deep)), fail, Model.load)
    assert len(tried) == 1


# --- draft models -----------------------------------------------------------------------------------------------------


def test_a_draft_model_on_devices_of_its_own(llama: Path, llama_draft: Path) -> None:
    both = text_of(placed(llama, 0, Placement(draft_devices=("CPU",), draft_gpu_layers=1)), llama_draft)
    assert both == text_of(options(llama, repack=False))


def test_the_draft_does_not_take_the_target_s_layers(llama: Path, llama_draft: Path) -> None:
    wanted = replace(ON_CPU, draft_gpu_layers=2)
    with open_session(placed(llama, 1, wanted), DraftFiles((llama_draft,))) as session:
        assert session.model.gpu_layers == 1
        assert session.engine.drafting.env.gpu_layers == 2 and session.engine.drafting.env.placement == ON_CPU
    with open_session(placed(llama, 1), DraftFiles((llama_draft,))) as session:
        assert session.engine.drafting.env.gpu_layers is None


# --- the command line -------------------------------------------------------------------------------------------------


def lcspec(*arguments: object) -> subprocess.CompletedProcess[str]:
    done = forks.server.run(arguments, timeout=300)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


COMMANDS: tuple[tuple[str, ...], ...] = (
    ("generate", "-p", "the cat", "-n", "4"),
    ("bench", "--limit", "1", "-n", "4", "--repeat", "1"),
    ("calibrate",),
    ("verify",),
    ("draft", "prune"),
    ("draft", "heads"),
    ("serve", "--port", "0"),
)


@pytest.mark.skipif(capabilities().gpu, reason="there is a GPU, so nothing is refused")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c[:2]))
def test_every_command_that_loads_a_model_refuses_what_this_build_cannot_do(
    command: tuple[str, ...], llama: Path, tmp_path: Path
) -> None:
    done = lcspec(
        *command,
        llama,
        "--device",
        "CUDA0",
        *(["--text", __file__, "--out", tmp_path / "x.gguf"] if command[-1] == "heads" else []),
    )
    assert done.returncode == 2, done.stderr
    assert "no device 'CUDA0'" in done.stderr and "GGML_CUDA=on" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "given",
    [
        ("--device", "none", "--gpu-layers", "0"),
        ("--no-kv-offload", "--cpu-moe", "--no-mmap"),
        ("--mmap", "--mlock"),
        ("-ot", r"blk\.0\..*=CPU"),
        ("-fa", "on", "-ctk", "bf16", "-ctv", "f16"),
        ("-fa", "off", "--kv-type", "f32"),
        ("--kv-type-v", "f32"),
    ],
    ids=" ".join,
)
def test_options_that_every_build_can_do(given: tuple[str, ...], llama: Path) -> None:
    done = lcspec("generate", llama, "-p", "the cat", "-n", "4", "--threads", "1", "--speculate", "off", *given)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_quantized_values_with_keys_that_are_not(folder: Path) -> None:
    """The attention that is measured must not choose products for them."""
    wide = tiny.write_llama(folder / "wide.gguf", width=128)
    for kinds in (("f16", "q8_0"), ("q8_0", "f16"), ("q8_0", "q4_0")):
        given = options(wide, attention="measured", kv_type=kinds[0], kv_type_v=kinds[1])
        assert len(text_of(given)) == 24


def test_options_that_do_not_go_together(llama: Path) -> None:
    with pytest.raises(UsageError, match="device"), open_session(placed(llama, 3, Placement(devices=()))):
        pass
    done = lcspec("generate", llama, "-p", "x", "-fa", "off", "--kv-type", "q8_0")
    assert done.returncode == 2 and "flash" in done.stderr
