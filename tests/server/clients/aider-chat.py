"""aider without a terminal changes a file: python aider-chat.py URL

A grammar has the model write the change, as a larger one would by itself.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

BEFORE, AFTER = "def area(w, h):\n    return w * h\n", "def area(w, h, d):\n    return w * h * d\n"
LIMITS = {"openai/demo": {"max_input_tokens": 8192, "max_output_tokens": 400}}

with tempfile.TemporaryDirectory() as folder:
    place = Path(folder)
    grammar = "root ::= " + json.dumps(f"Here it is.\n\nshapes.py\n```\n{AFTER}```\n")
    extra = {"max_tokens": 400, "extra_body": {"grammar": grammar}}
    # JSON is YAML.
    settings = [{"name": "openai/demo", "edit_format": "whole", "use_temperature": 0, "extra_params": extra}]
    (place / "settings.yml").write_text(json.dumps(settings))
    (place / "metadata.json").write_text(json.dumps(LIMITS))
    environment = os.environ | {"OPENAI_API_BASE": f"{sys.argv[1]}/v1", "OPENAI_API_KEY": "none", "HOME": folder}
    command = [str(Path(sys.executable).with_name("aider")), "--model", "openai/demo", "--weak-model", "openai/demo"]
    command += ["--model-settings-file", "settings.yml", "--model-metadata-file", "metadata.json", "--no-git"]
    command += ["--yes-always", "--no-check-update", "--no-analytics", "--no-show-model-warnings", "--no-pretty"]
    command += ["--no-show-release-notes", "--no-suggest-shell-commands", "--map-tokens", "0", "--no-fancy-input"]
    for stream in ("--stream", "--no-stream"):
        (place / "shapes.py").write_text(BEFORE)
        got = subprocess.run(
            [*command, "--message", "Give the area a depth.", stream, "shapes.py"],
            capture_output=True, text=True, env=environment, timeout=300, cwd=folder, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert got.returncode == 0 and (place / "shapes.py").read_text() == AFTER, got.stdout + got.stderr
print("served")
