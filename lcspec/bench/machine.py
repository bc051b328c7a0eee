"""What a benchmark ran on."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import Any

from lcspec import __version__
from lcspec.llama import Model, version
from lcspec.llama.threads import physical_cores, usable_cpus
from lcspec.modelfiles.modelfile import read_header
from lcspec.session import Session


def cpu_name() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "Hardware", "cpu model")):
                return line.partition(":")[2].strip()
    except (OSError, UnicodeDecodeError):
        pass
    return platform.processor() or platform.machine()


def load_average() -> float | None:
    """Runnable processes over the last minute; None where that is unknown."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


def describe_machine(session: Session) -> dict[str, Any]:
    """Processor, system, library and what the context was made with."""
    options = session.engine.options
    return {
        "cpu": cpu_name(),
        "physical_cores": physical_cores(),
        "usable_cpus": usable_cpus(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "lcspec": __version__,
        "llama_cpp": version(),
        "threads": session.engine.context.n_threads,
        "gpu_layers": session.model.gpu_layers,
        "ctx": session.engine.context.n_ctx,
        "kv_type": options.kv_type,
        "kv_type_v": options.kv_type_v or options.kv_type,
        "exact": session.engine.exact.all_exact,
        "attention": options.attention,
        "repack": session.model.repack,
        "load_average": load_average(),
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def describe_target(model: Model) -> dict[str, Any]:
    """The target's header."""
    return {**describe_file(model.options.path), "layers": model.traits.n_layer, "embedding": model.traits.n_embd}


def describe_file(path: Path) -> dict[str, Any]:
    """A model file by name, without where it lies.

    Raises:
        ModelFileError: it cannot be read.
    """
    header = read_header(path)
    return {
        "file": path.name,
        "name": header.name,
        "architecture": header.architecture,
        "parameters": header.n_params,
        "quantization": header.quantization,
        "file_bytes": header.file_size,
    }
