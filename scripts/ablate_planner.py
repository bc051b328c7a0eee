"""What every constant and rule of the planner is worth, on recorded drafts in virtual time.

    python scripts/ablate_planner.py smollm2.rec.gz demo.rec.gz stories.rec.gz [--out docs/planner-ablation.md]

Every recording (see `scripts/record_drafts.py`) is decoded on the machines of `MACHINES` that fit its drafters, once
with the planner as it is and once for each change; a figure is the geometric mean, over the answers, of the speed over
plain decoding, Python's time included. Nothing is timed, so it may run beside anything.
"""

from __future__ import annotations

from scripts.planner_replay import Machine

# Milliseconds of a step by width. A 135 M model (Q4_1) on two cores with AMX, and a change of width there; a model of
# 1 B (Q4_0) on AVX-512 without AMX and on an EPYC; Q8_0; a GPU with work to spare.
PYTHON = dict(bare=0.10e-3, step=0.15e-3, node=6e-6)
MACHINES = {
    "135M AMX": Machine.of("135M AMX", "1:4.06,2:8.24,3:8.88,4:9.58,8:13.5,16:19.9,32:36", change=0.9e-3, **PYTHON),
    "1B AVX-512": Machine.of("1B AVX-512", "1:20,2:27,3:38,4:27,5:38,6:44,8:46,12:58,16:65,17:78,32:122", **PYTHON),
    "1B EPYC": Machine.of("1B EPYC", "1:60,2:108,3:162,4:216,8:300,16:440,32:800", **PYTHON),
    "1B Q8_0": Machine.of("1B Q8_0", "1:27,2:54,3:65,4:73,8:92,16:143,32:268", **PYTHON),
    "GPU": Machine.of("GPU", "1:6,16:7,17:9.6,32:11", change=0.2e-3, **PYTHON),
}
