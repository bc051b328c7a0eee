"""Options about devices: what they mean, what is malformed, what this build cannot do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lcspec.config import ModelOptions
from lcspec.errors import UsageError
from lcspec.llama import devices as found
from lcspec.llama.devices import Device, Placed, match
from lcspec.placement import EXPERTS, Placement, draft_layers, endpoint, loading_fields

GB = 1 << 30
CPU = Device("CPU", "a processor", "CPU", 32 * GB, 16 * GB, 1)
ONE = Device("CUDA0", "a GPU", "GPU", 24 * GB, 20 * GB, 2)
TWO = Device("CUDA1", "a smaller GPU", "GPU", 8 * GB, 6 * GB, 3)
INSIDE = Device("Vulkan0", "the processor's GPU", "integrated GPU", 16 * GB, 8 * GB, 4)
FAR = Device("RPC0", "127.0.0.1:1", "GPU", 8 * GB, 8 * GB, 5)


def options(gpu_layers: int | None = None, **placement: Any) -> ModelOptions:
    return ModelOptions(Path("m.gguf"), gpu_layers=gpu_layers, placement=Placement(**placement))


def test_nothing_said_is_the_default() -> None:
    fields = loading_fields({})
    assert ModelOptions(Path("m.gguf"), **fields) == ModelOptions(Path("m.gguf"))


def test_everything_is_read() -> None:
    fields = loading_fields(
        {
            **{"gpu_layers": 12, "device": "CUDA1, CUDA0", "main_gpu": 1, "split_mode": "none", "tensor_split": "3/1"},
            **{"override_tensor": (r"\.ffn_(up|down)=CPU,attn=CUDA1", r"blk\.[0-9]{1,2}\.=CUDA0"), "cpu_moe": True},
            **{"kv_offload": False, "swa_full": False, "mmap": False, "mlock": True, "flash_attn": "on"},
            **{"kv_type": "f16"},
            **{"kv_type_v": "bf16", "draft_device": "none", "draft_gpu_layers": 3, "workers": "a:1,10.0.0.2:2"},
        }
    )
    assert (fields["gpu_layers"], fields["kv_type"], fields["kv_type_v"]) == (12, "f16", "bf16")
    assert (fields["attention"], fields["full_windows"]) == ("fused", False)
    assert fields["placement"] == Placement(
        devices=("CUDA1", "CUDA0"),
        main_gpu=1,
        split_mode="none",
        tensor_split=(3.0, 1.0),
        overrides=((r"\.ffn_(up|down)", "CPU"), ("attn", "CUDA1"), (r"blk\.[0-9]{1,2}\.", "CUDA0"), (EXPERTS, "CPU")),
        kv_offload=False,
        mmap=False,
        mlock=True,
        workers=("a:1", "10.0.0.2:2"),
        draft_devices=(),
        draft_gpu_layers=3,
    )


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        ({"kv_type": "q8_0"}, ("q8_0", None)),
        ({"kv_type": "f16", "kv_type_k": "q8_0"}, ("q8_0", "f16")),
        ({"kv_type": "f16", "kv_type_v": "bf16"}, ("f16", "bf16")),
        ({"kv_type": "f16", "kv_type_k": "q8_0", "kv_type_v": "q4_0"}, ("q8_0", "q4_0")),
        ({"kv_type": "f16", "kv_type_k": "bf16", "kv_type_v": "bf16"}, ("bf16", None)),
    ],
)
def test_keys_and_values_apart(given: dict[str, str], kinds: tuple[str, str | None]) -> None:
    fields = loading_fields(given)
    assert (fields["kv_type"], fields["kv_type_v"]) == kinds


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tensor_split": "3,x"}, "shares"),
        ({"tensor_split": "0,0"}, "not all 0"),
        ({"tensor_split": "-1,2"}, "0 or more"),
        ({"tensor_split": "nan"}, "0 or more"),
        ({"tensor_split": ",".join("1" * 17)}, "at most 16"),
        ({"split_mode": "diagonal"}, "layer, none, row, tensor"),
        ({"main_gpu": 16}, "from 0 to 15"),
        ({"override_tensor": ("experts",)}, "PATTERN=DEVICE"),
        ({"override_tensor": ("=CPU",)}, "PATTERN=DEVICE"),
        ({"override_tensor": ("(=CPU",)}, "no pattern"),
        ({"device": "CUDA0,CUDA0"}, "twice"),
        ({"workers": "a:1,a:1"}, "twice"),
        ({"workers": "a"}, "HOST:PORT"),
        ({"flash_attn": "maybe"}, "on, off or auto"),
    ],
)
def test_what_is_malformed_is_said(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        loading_fields(given)


@pytest.mark.parametrize("text", ["a", ":1", "a:", "a:b", "a:70000", "a:-1", "[::1]:5", "::1"])
def test_an_address_is_a_host_and_a_port(text: str) -> None:
    assert endpoint("box.local:50052") == ("box.local", 50052)
    with pytest.raises(UsageError, match="HOST:PORT"):
        endpoint(text)


def test_quantized_values_need_the_fused_kernel() -> None:
    for kinds in ({"kv_type": "q8_0"}, {"kv_type_v": "q4_0"}):
        with pytest.raises(UsageError, match="flash"):
            ModelOptions(Path("m.gguf"), attention="products", **kinds)  # type: ignore[arg-type]
    ModelOptions(Path("m.gguf"), attention="products", kv_type="q8_0", kv_type_v="f16")


def test_draft_models_have_their_own_devices() -> None:
    target = Placement(("CUDA0",), tensor_split=(1.0,), overrides=(("x", "CPU"),), workers=("a:1",), mlock=True)
    assert target.for_draft == Placement(("CUDA0",), mlock=True), "no workers, and no figures of the target's"
    assert replace(target, draft_devices=("CUDA1",)).for_draft.devices == ("CUDA1",)
    alone = Placement(main_gpu=1, split_mode="none")
    assert (alone.for_draft.main_gpu, alone.for_draft.split_mode) == (1, "none")
    assert replace(alone, draft_devices=("CUDA0",)).for_draft == Placement(("CUDA0",))


def test_layers_of_a_draft_are_its_own() -> None:
    assert draft_layers(20, Placement()) is None, "as many as fit, not the target's 20"
    assert draft_layers(0, Placement()) == 0, "nothing was to be on a GPU"
    assert draft_layers(0, Placement(draft_devices=("CUDA0",))) is None
    assert draft_layers(0, Placement(draft_gpu_layers=-1)) == -1


# --- on a table of devices --------------------------------------------------------------------------------------------


def names(placed: Placed) -> list[str]:
    return [d.name for d in placed.devices]


def test_which_devices_are_used() -> None:
    table = [CPU, ONE, TWO, INSIDE]
    assert names(match(options(), table, ["CUDA"])) == ["CUDA0", "CUDA1"]
    assert not match(options(), table, ["CUDA"]).named, "the library's own choice"
    assert names(match(options(), [CPU, INSIDE], ["Vulkan"])) == ["Vulkan0"]
    placed = match(options(devices=("cuda1", "CUDA0")), table, ["CUDA"])
    assert names(placed) == ["CUDA1", "CUDA0"] and placed.named
    assert names(match(options(devices=()), table, ["CUDA"])) == []
    assert names(match(options(), table, ["CUDA"], [FAR])) == ["RPC0", "CUDA0", "CUDA1"]
    assert names(match(options(devices=(), workers=("a:1",)), table, ["CUDA"], [FAR])) == ["RPC0"]


@pytest.mark.parametrize(
    ("gpu_layers", "placement", "option"),
    [
        (12, {}, "--gpu-layers"),
        (-1, {}, "--gpu-layers"),
        (None, {"tensor_split": (3.0, 1.0)}, "--tensor-split"),
        (None, {"split_mode": "row"}, "--split-mode"),
        (None, {"main_gpu": 1}, "--main-gpu"),
        (None, {"draft_gpu_layers": 4}, "--draft-gpu-layers"),
        (None, {"devices": ("CUDA0",)}, "CUDA0"),
        (None, {"draft_devices": ("CUDA0",)}, "CUDA0"),
        (None, {"overrides": (("x", "CUDA0"),)}, "CUDA0"),
    ],
)
def test_without_a_gpu_it_is_said_which_build_has_one(
    gpu_layers: int | None, placement: dict[str, Any], option: str
) -> None:
    asked = options(gpu_layers, **placement)
    with pytest.raises(UsageError, match=f"{option}.*GGML_CUDA=on.*GGML_HIP=on.*GGML_METAL=on.*doctor"):
        match(asked, [CPU], [])
    with pytest.raises(UsageError, match=f"{option}.*is for CUDA and finds no GPU"):
        match(asked, [CPU], ["CUDA"])


def test_what_main_memory_does_anyway_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found, "_buffer", lambda device: device.handle)
    asked = options(0, kv_offload=False, mmap=True, mlock=True, overrides=((EXPERTS, "cpu"),), draft_gpu_layers=0)
    placed = match(asked, [CPU], [])
    assert placed.devices == () and placed.overrides == ((EXPERTS, CPU.handle),)


@pytest.mark.parametrize(
    ("gpu_layers", "placement", "words"),
    [
        (None, {"devices": ("CUDA7",)}, "no device 'CUDA7'.*CPU, CUDA0, CUDA1"),
        (None, {"split_mode": "none", "main_gpu": 2}, "no GPU number 2.*CUDA0, CUDA1"),
        (None, {"tensor_split": (1.0, 1.0, 1.0)}, "3 shares for 2 devices"),
        (None, {"devices": ("CUDA0",), "tensor_split": (1.0, 1.0)}, "2 shares for 1 device"),
        (9, {"devices": ()}, "--gpu-layers needs a device, and --device says none"),
    ],
)
def test_what_the_devices_do_not_give(gpu_layers: int | None, placement: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        match(options(gpu_layers, **placement), [CPU, ONE, TWO], ["CUDA"])
