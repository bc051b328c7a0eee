"""How many threads a decode should use: physical cores this process may run on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def usable_cpus() -> int:
    """Logical CPUs this process may use: its affinity mask, narrowed by a cgroup CPU quota."""
    try:
        n = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        n = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            n = min(n, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return max(1, n)


def physical_cores() -> int:
    """Physical (on Apple silicon: performance) cores; hyper-threads slow token generation down."""
    if sys.platform == "darwin":
        for key in ("hw.perflevel0.physicalcpu", "hw.physicalcpu"):
            try:
                return int(subprocess.run(["sysctl", "-n", key], capture_output=True, check=True).stdout)
            except (OSError, subprocess.CalledProcessError, ValueError):
                continue
    siblings = set()
    for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list"):
        try:
            siblings.add(path.read_text().strip())
        except OSError:
            continue
    return len(siblings) or (os.cpu_count() or 1)


def default_threads() -> int:
    """The number of threads to decode with when the user does not say."""
    return max(1, min(physical_cores(), usable_cpus()))
