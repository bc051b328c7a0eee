"""`lcspec doctor`: what this installation can do on this machine, and the one line that makes a better one."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, replace
from typing import Any

import click

from lcspec import __version__
from lcspec.commands.rebuild import Advice, Hardware, command, hardware
from lcspec.config import KV_TYPES
from lcspec.disk_cache import cache_dir
from lcspec.llama import version
from lcspec.llama.capabilities import AMX, Capabilities, capabilities
from lcspec.llama.threads import default_threads, physical_cores, usable_cpus
from lcspec.modelfiles.gguf_header import format_size
from lcspec.modelfiles.memory import machine_memory
from lcspec.modelfiles.starter import STARTER, starter_path
from lcspec.paths import config_dir, data_dir

RPC = "-DGGML_RPC=on"
# Names of instruction sets: the kernel's in /proc/cpuinfo, and the library's.
INSTRUCTIONS = {
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx_vnni": "AVX_VNNI",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "asimddp": "DOTPROD",
    "i8mm": "MATMUL_INT8",
    "sve": "SVE",
}
AMX_STATES = {
    "used": "used",
    "unsound": "not used: this build of the library would crash",
    "absent": "not used: this build of the library has no kernels for it",
    "none": "this processor has none",
}


def run(as_json: bool) -> None:
    """Look and print."""
    info = describe(capabilities(), hardware())
    click.echo(json.dumps(info, ensure_ascii=False) if as_json else "\n".join(text(info)))


# --- looking ----------------------------------------------------------------------------------------------------------


def advise(can: Capabilities, has: Hardware) -> Advice:
    """What another build of the library would bring on this machine."""
    gains, cmake = [], []
    if can.amx in ("unsound", "absent"):
        gains.append("AMX: this processor's matrix unit reads prompts and checks wide drafts several times as fast")
    older = sorted(INSTRUCTIONS[f] for f in has.flags & INSTRUCTIONS.keys() if INSTRUCTIONS[f] not in can.instructions)
    if older:
        gains.append(f"{', '.join(older)}: this processor has them, and the library was compiled without")
    if has.gpu and not can.gpu:
        name, flag, kit = {
            "nvidia": ("NVIDIA", "-DGGML_CUDA=on", "the CUDA toolkit (nvcc)"),
            "amd": ("AMD", "-DGGML_HIP=on", "ROCm (hipcc)"),
        }[has.gpu]
        gains.append(
            f"the {name} GPU, where models run many times as fast" + ("" if has.toolkit else f"; install {kit} first")
        )
        cmake.append(flag)
    return Advice(tuple(gains), tuple(cmake), can.amx in ("unsound", "absent"))


def describe(can: Capabilities, has: Hardware) -> dict[str, Any]:
    """Everything `doctor --json` prints."""
    advice = advise(can, has)
    memory = machine_memory()
    return {
        "lcspec": __version__,
        "llama_cpp": version(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "threads": default_threads(),
        "physical_cores": physical_cores(),
        "usable_cpus": usable_cpus(),
        "memory": None if memory is None else asdict(memory),
        "amx": can.amx,
        "gpu": can.gpu,
        "gpu_backends": list(can.backends),
        "rpc": can.rpc,
        "rpc_build": None if can.rpc else command(replace(advice, cmake=(*advice.cmake, RPC))),
        "eagle3": can.eagle3,
        "mtp": can.mtp,
        "instructions": sorted(can.instructions),
        "few_rows": list(can.few_rows),
        "few_rows_missing": can.why_none or None,
        "kv_types": list(KV_TYPES),
        "devices": [{k: v for k, v in asdict(d).items() if k != "handle"} for d in can.devices],
        "starter_model": str(starter_path()) if starter_path().exists() else None,
        "folders": {"data": str(data_dir()), "cache": str(cache_dir()), "configuration": str(config_dir())},
        "better_build": {
            "gains": list(advice.gains),
            "command": command(advice),
        }
        if advice.gains
        else None,
    }


def gpu_state(found: bool, backends: list[str]) -> str:
    """Whether layers can go to a GPU, and if not, why."""
    if found:
        return f"yes ({', '.join(backends)})"
    return f"none found (this build is for {', '.join(backends)})" if backends else "no: this build knows none"


# --- telling ----------------------------------------------------------------------------------------------------------


def text(info: dict[str, Any]) -> list[str]:
    """The same for people, as lines."""
    memory, folders = info["memory"], info["folders"]
    kernels = [name for name in info["instructions"] if name not in ("OPENMP", "LLAMAFILE", "REPACK", AMX)]
    threads = "1 thread is" if info["threads"] == 1 else f"{info['threads']} threads are"
    rows = {
        "lcspec": f"{info['lcspec']}, llama-cpp-python {info['llama_cpp']}, Python {info['python']}",
        "processor": f"{threads} used ({info['physical_cores']} cores, {info['usable_cpus']} CPUs)",
        "memory": "not known"
        if memory is None
        else f"{format_size(memory['free'])} of {format_size(memory['total'])} free",
        "compiled for": " ".join(kernels) or "any processor",
        "own kernels": " ".join(info["few_rows"]) or f"none; {info['few_rows_missing']}",
        "AMX": AMX_STATES[info["amx"]],
        "GPU": gpu_state(info["gpu"], info["gpu_backends"]),
        "KV cache types": ", ".join(info["kv_types"]),
        "EAGLE-3 heads": "yes" if info["eagle3"] else "no: this library does not give out a model's hidden states",
        "MTP heads": "yes" if info["mtp"] else "no: this library does not give out a model's hidden states",
        "other machines": "yes (RPC)" if info["rpc"] else f"no (RPC); a build that can: {info['rpc_build']}",
    }
    lines = [f"{name + ':':<16} {value}" for name, value in rows.items()]
    lines.append("devices:")
    for d in info["devices"]:
        size = f", {format_size(d['free'])} of {format_size(d['memory'])} free" if d["memory"] else ""
        lines.append(f"  {d['name']} ({d['kind']}): {d['description']}{size}")
    lines += [f"{name + ':':<16} {path}" for name, path in folders.items()]
    if info["starter_model"] is None:
        lines.append(f"No assistant yet? lcspec pull {STARTER} downloads a small one (98 MB).")
    better = info["better_build"]
    if better is None:
        lines.append("The library is as good as it gets on this machine.")
    else:
        lines += ["", "A better build of the library would bring:"]
        lines += [f"  {gain}" for gain in better["gains"]]
        lines += ["This makes it (a compiler is needed; some minutes):", f"  {better['command']}"]
    return lines
