"""`lcspec pull` against a hub on this machine: choosing, resuming, checking, drafts, and every way to fail."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lcspec.errors import DownloadError, UsageError
from lcspec.modelfiles.hub import Hub, Name, RemoteFile, RemoteModel, choose, parse_name
from tests import forks
from tests import tiny_gguf as tiny
from tests.loopback_hub import COMMIT, HubState, loopback_hub
from tests.running import own_cache

pytestmark = pytest.mark.slow

BIG, SMALL = "acme/Tiny-7B-Instruct-GGUF", "acme/Tiny-0.5B-Instruct-GGUF"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A target and a draft model with its vocabulary."""
    folder = tmp_path_factory.mktemp("written")
    big = tiny.write_llama(folder / "big.gguf", n_layer=4, width=128, n_ff=256, chat_template=tiny.CHATML_TEMPLATE)
    small = tiny.write_llama(folder / "small.gguf", n_layer=1)
    other = tiny.write_llama(folder / "other.gguf", n_layer=1, vocab=tiny.byte_bpe_vocab(permutation=1))
    return {path.stem: path.read_bytes() for path in (big, small, other)}


@pytest.fixture
def hub(written: dict[str, bytes]) -> Iterator[HubState]:
    big, small = written["big"], written["small"]
    repos = {
        BIG: {
            "Tiny-7B-Instruct-Q8_0.gguf": big + b"\0" * 64,
            "Tiny-7B-Instruct-Q4_K_M.gguf": big,
            "mmproj-Tiny-7B-f16.gguf": b"x",
            "README.md": b"# Tiny",
        },
        SMALL: {"Tiny-0.5B-Instruct-Q4_K_M.gguf": small},
        "acme/Tiny-3B-Instruct-GGUF": {"Tiny-3B-Instruct-Q4_K_M.gguf": small},
        "acme/Tiny-0.1B-Base-GGUF": {"Tiny-0.1B-Base-Q4_K_M.gguf": small},
        "acme/notes": {"README.md": b"nothing here"},
        "acme/secret": {"secret.gguf": big},
    }
    with loopback_hub(HubState(repos, gated={"acme/secret"})) as state:
        yield state


@pytest.fixture
def environment(tmp_path: Path, hub: HubState) -> dict[str, str]:
    """Of a process that knows this hub and writes nowhere else."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "LCSPEC_", "XDG_"))}
    return {
        **kept,
        "HOME": str(tmp_path / "home"),
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "LCSPEC_DATA_DIR": str(tmp_path / "data"),
        "LCSPEC_CACHE_DIR": str(own_cache(tmp_path)),
    }


def lcspec(env: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = forks.server.run(arguments, env=env, cwd=folder)
    return subprocess.CompletedProcess(arguments, done.returncode, done.stdout.decode(), done.stderr.decode())


def impatient(patch: pytest.MonkeyPatch) -> None:
    """Small pieces, so that something is there to go on with, and no pause between two tries."""
    patch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 500)
    patch.setattr("time.sleep", lambda seconds: None)


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("acme/Tiny-GGUF", Name("acme/Tiny-GGUF")),
        ("acme/Tiny-GGUF:Q4_K_M", Name("acme/Tiny-GGUF", "Q4_K_M")),
        ("acme/Tiny-GGUF:sub/Tiny.gguf", Name("acme/Tiny-GGUF", "sub/Tiny.gguf")),
        ("https://hub.example/acme/Tiny-GGUF/", Name("acme/Tiny-GGUF")),
    ],
)
def test_names(text: str, name: Name) -> None:
    assert parse_name(text) == name


@pytest.mark.parametrize("text", ["", "tiny", "a/b/c", "a b/c", "a/b:", "a/b:c:d"])
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(UsageError, match="owner/repo"):
        parse_name(text)


def remote(*names: str) -> list[RemoteModel]:
    return [RemoteModel("a/b", "main", (RemoteFile(name, 1_000_000, None),)) for name in names]


@pytest.mark.parametrize(
    ("what", "names", "chosen"),
    [
        ("", ["only-IQ1.gguf"], "only-IQ1.gguf"),
        ("", ["m-Q8_0.gguf", "m-Q4_0.gguf", "m-Q4_K_M.gguf"], "m-Q4_K_M.gguf"),
        ("", ["m-Q8_0.gguf", "m-F16.gguf"], "m-Q8_0.gguf"),
        ("q8_0", ["m-Q8_0.gguf", "m-Q4_0.gguf"], "m-Q8_0.gguf"),
        ("Q4_K", ["m-Q4_K_M.gguf", "m-Q4_K.gguf"], "m-Q4_K.gguf"),
        ("Q4_K_XL", ["m-UD-Q4_K_XL.gguf", "m-Q4_0.gguf"], "m-UD-Q4_K_XL.gguf"),
        ("m-Q4_0.gguf", ["x/m-Q4_0.gguf", "m-Q8_0.gguf"], "x/m-Q4_0.gguf"),
    ],
)
def test_which_file_is_meant(what: str, names: list[str], chosen: str) -> None:
    assert choose(Name("a/b", what), remote(*names)).name == chosen


@pytest.mark.parametrize(
    ("what", "names", "said"),
    [
        ("", [], "no GGUF files"),
        ("", ["a-IQ1.gguf", "a-IQ2.gguf"], "name one as a/b:FILE"),
        ("Q5_K_M", ["a-Q4_0.gguf"], "has no Q5_K_M; it has a-Q4_0.gguf"),
        ("b.gguf", ["a.gguf"], "has no b.gguf"),
    ],
)
def test_what_cannot_be_chosen(what: str, names: list[str], said: str) -> None:
    with pytest.raises(DownloadError, match=said):
        choose(Name("a/b", what), remote(*names))


# --- downloading ------------------------------------------------------------------------------------------------------


def test_a_repository_is_listed_without_what_is_no_model(hub: HubState, tmp_path: Path) -> None:
    listed = Hub(hub.url, tmp_path).models(BIG)
    assert [m.name for m in listed] == ["Tiny-7B-Instruct-Q4_K_M.gguf", "Tiny-7B-Instruct-Q8_0.gguf"]
    assert all(m.revision == COMMIT and m.parts[0].sha256 for m in listed)


def test_split_models_come_whole(hub: HubState, tmp_path: Path) -> None:
    hub.repos["acme/Split"] = {f"big-Q4_0-0000{i}-of-00003.gguf": b"GGUF" + bytes([i]) * 100 for i in (1, 2, 3)}
    ours = Hub(hub.url, tmp_path)
    model = ours.choose(Name("acme/Split", "Q4_0"))
    assert len(model.parts) == 3 and model.size == 312
    first = ours.download(model)
    assert sorted(p.name for p in first.parent.iterdir()) == sorted(hub.repos["acme/Split"])


def test_a_broken_connection_is_taken_up_where_it_broke(
    hub: HubState, tmp_path: Path, written: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    hub.cut = [1000, 5000]
    ours = Hub(hub.url, tmp_path)
    path = ours.download(ours.choose(Name(BIG, "Q4_K_M")))
    assert path.read_bytes() == written["big"]
    assert [r.partition("-")[0] for r in hub.ranges] == ["bytes=1000", "bytes=6000"]


def test_an_interrupted_download_goes_on(
    hub: HubState, tmp_path: Path, written: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    ours = Hub(hub.url, tmp_path)
    model = ours.choose(Name(BIG, "Q4_K_M"))
    hub.cut = [2000] + [0] * 20  # nothing more comes, until the library gives up
    with pytest.raises(DownloadError, match="the same command goes on"):
        ours.download(model)
    hub.cut, hub.ranges = [], []
    assert Hub(hub.url, tmp_path).download(model).read_bytes() == written["big"]
    assert hub.ranges[0].startswith("bytes=2000")


def test_what_did_not_arrive_whole_is_removed(hub: HubState, tmp_path: Path, written: dict[str, bytes]) -> None:
    hub.wrong = "Tiny-7B-Instruct-Q4_K_M.gguf"
    ours = Hub(hub.url, tmp_path)
    model = ours.choose(Name(BIG))
    with pytest.raises(DownloadError, match="did not arrive whole"):
        ours.download(model)
    hub.wrong = ""
    assert ours.download(model).read_bytes() == written["big"]


def test_what_is_there_is_not_downloaded_again(hub: HubState, tmp_path: Path, written: dict[str, bytes]) -> None:
    ours = Hub(hub.url, tmp_path)
    model = ours.choose(Name(BIG))
    ours.download(model)
    hub.repos[BIG] = {}
    assert ours.download(model).read_bytes() == written["big"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("acme/nobody", "the hub has no model acme/nobody"),
        ("acme/secret", "asks for consent"),
        ("acme/notes", "no GGUF files"),
        (f"{BIG}:Q2_K", "has no Q2_K; it has Tiny-7B-Instruct-Q4_K_M.gguf"),
        ("nonsense", "owner/repo"),
    ],
)
def test_errors_say_what_to_do(
    environment: dict[str, str], tmp_path: Path, name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = lcspec(environment, tmp_path, "pull", name)
    assert done.returncode in (1, 2) and done.stdout == ""
    assert said in done.stderr and len(done.stderr.splitlines()) == 1 and done.stderr.startswith("lcspec: ")


@pytest.mark.parametrize("how", ["nobody answers", "told to be offline"])
def test_offline(environment: dict[str, str], tmp_path: Path, how: str) -> None:
    more = {"HF_ENDPOINT": "http://127.0.0.1:9"} if how == "nobody answers" else {"HF_HUB_OFFLINE": "1"}
    done = lcspec({**environment, **more}, tmp_path, "pull", BIG)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "lcspec chat FILE" in done.stderr and len(done.stderr.splitlines()) == 1


# --- drafts -----------------------------------------------------------------------------------------------------------


def test_the_smallest_of_the_family_is_the_draft(hub: HubState, tmp_path: Path) -> None:
    ours = Hub(hub.url, tmp_path)
    found = ours.find_draft(ours.choose(Name(BIG)))
    assert found is not None and found.repo == SMALL
    assert ours.find_draft(found) is None


def test_a_draft_is_named_and_downloaded_on_demand(
    environment: dict[str, str], tmp_path: Path, written: dict[str, bytes]
) -> None:
    done = lcspec(environment, tmp_path, "pull", BIG)
    assert done.returncode == 0 and f"lcspec pull {SMALL}" in done.stderr
    assert Path(done.stdout.strip()).read_bytes() == written["big"]
    done = lcspec(environment, tmp_path, "pull", BIG, "--draft", "--json")
    told = json.loads(done.stdout)
    assert Path(told["draft"]).read_bytes() == written["small"]
    # and now it is paired, by its name as well
    listed = {m["name"]: m for m in json.loads(lcspec(environment, tmp_path, "models", "--json").stdout)}
    big = listed[f"{BIG}/Tiny-7B-Instruct-Q4_K_M.gguf"]
    assert (big["draft"], big["fits"], big["quantization"]) == (told["draft"], True, "F32")
    done = lcspec(environment, tmp_path, "generate", f"{BIG}:Q4_K_M", "-p", "the cat", "-n", "4", "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"lcspec: paired with {SMALL}/Tiny-0.5B-Instruct-Q4_K_M.gguf (--no-draft leaves it out)\n"


def test_a_draft_with_another_vocabulary_is_not_paired(
    hub: HubState, environment: dict[str, str], tmp_path: Path, written: dict[str, bytes]
) -> None:
    hub.repos[SMALL] = {"Tiny-0.5B-Instruct-Q4_K_M.gguf": written["other"]}
    done = lcspec(environment, tmp_path, "pull", BIG, "--draft", "--json")
    assert json.loads(done.stdout)["draft"] is None and "another vocabulary" in done.stderr
