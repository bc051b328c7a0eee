"""From an empty environment with the wheel to the first answer of SmolLM2: the commands of the README, and seconds.

    make dist
    python scripts/first_answer.py dist/lcspec-*.whl

Everything happens in a new folder, which is its own home: nothing of the user's is read or written, and pip keeps no
cache, so llama.cpp is compiled as it is for somebody who never had it. `--keep` leaves the folder for a look at it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

# As the README has them. `~` is the new folder, in which the wheel lies.
COMMANDS = (
    "python3 -m venv ~/lcspec-env",
    "~/lcspec-env/bin/pip install lcspec-*.whl",
    "lcspec pull smollm2",
    'lcspec generate smollm2 --chat -p "Give me three tips for sleeping well." -n 200',
)


def environment(home: Path) -> dict[str, str]:
    """Of somebody with an empty home directory and the new environment on the PATH; pip's settings (an index of one's
    own) stay."""
    ours = ("LCSPEC_", "XDG_", "HF_", "VIRTUAL_ENV", "PYTHONPATH", "CMAKE_ARGS", "CXXFLAGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = os.pathsep.join([str(home / "lcspec-env" / "bin"), kept.get("PATH", os.defpath)])
    return {**kept, "HOME": str(home), "PATH": path, "PIP_NO_CACHE_DIR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def run(line: str, home: Path) -> float:
    """Run a command as a shell would; the seconds it took.

    Raises:
        CalledProcessError: it failed; what it said is on the terminal.
    """
    click.secho(f"$ {line}", bold=True, err=True)
    start = time.perf_counter()
    subprocess.run(line, shell=True, check=True, cwd=home, env=environment(home), stdout=sys.stderr)
    return time.perf_counter() - start


@click.command()
@click.argument("wheel", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--keep", is_flag=True, help="Leave the folder.")
def main(wheel: Path, keep: bool) -> None:
    """Run the commands and print the seconds of each as JSON."""
    home = Path(tempfile.mkdtemp(prefix="lcspec-first-"))
    try:
        shutil.copy(wheel, home)
        seconds = {line: round(run(line, home), 1) for line in COMMANDS}
    except subprocess.CalledProcessError as error:
        raise click.ClickException(f"this failed: {error.cmd}") from error
    finally:
        if keep:
            click.echo(f"left: {home}", err=True)
        else:
            shutil.rmtree(home)
    click.echo(json.dumps({"seconds": seconds, "all": round(sum(seconds.values()), 1)}, indent=2))


if __name__ == "__main__":
    main()
