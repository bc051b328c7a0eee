"""llm's command line: python llm.py URL"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    lines = ["- model_id: local", "  model_name: demo", f'  api_base: "{sys.argv[1]}/v1"', "  supports_schema: true"]
    (Path(folder) / "extra-openai-models.yaml").write_text("\n".join(lines) + "\n")
    environment = os.environ | {"LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}
    command = [str(Path(sys.executable).with_name("llm")), "-m", "local", "-o", "max_tokens", "24"]
    for more in (["Hello, how are you today?"], ["--no-stream", "Hello, how are you today?"]):
        got = subprocess.run([*command, *more], capture_output=True, text=True, env=environment, timeout=200)
        assert got.returncode == 0 and got.stdout.strip(), got.stderr
print("served")
