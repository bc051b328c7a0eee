"""Attached files: finding their paths, reading them, putting them into a message."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lcspec.tui.attachments import (
    Attachment,
    AttachmentError,
    compose,
    count_tokens,
    fenced,
    file_command,
    pasted_paths,
    read_attachment,
)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    out = {}
    for name in ("plain.txt", "with space.py", "quote's.md", "a#b?c%20.txt", "ünïcode.txt", "new\nline.txt", "-dash"):
        out[name] = tmp_path / name
        out[name].write_text("text\n")
    return out


# --- paths ------------------------------------------------------------------------------------------------------------


def ways_to_paste(path: Path) -> list[str]:
    """How terminals write a dragged-in file."""
    url = path.as_uri()
    return [
        shlex.quote(str(path)),
        f"'{path}' " if "'" not in path.name else shlex.quote(str(path)),
        f'"{path}"',
        "".join("\\" + c if c in " '#?&()\\" else c for c in str(path)) if "\n" not in path.name else url,
        url,
        url + "\n",
        url.replace("file:///", "file://localhost/"),
    ]


def test_every_way_to_paste_a_path(files: dict[str, Path]) -> None:
    for path in files.values():
        for pasted in ways_to_paste(path):
            assert pasted_paths(pasted) == [path], pasted
            assert file_command(f"/file {pasted}") == [path], pasted
    for name in ("plain.txt", "with space.py", "quote's.md", "ünïcode.txt"):
        assert pasted_paths(str(files[name])) == [files[name]], "bare, as some terminals do"
        assert file_command(f"/file {files[name]}") == [files[name]]


def test_several_files_at_once(files: dict[str, Path]) -> None:
    paths = [files["plain.txt"], files["with space.py"], files["quote's.md"]]
    for separator in (" ", "\n", "  "):
        assert pasted_paths(separator.join(shlex.quote(str(p)) for p in paths)) == paths
    assert pasted_paths("\r\n".join(p.as_uri() for p in paths)) == paths
    assert pasted_paths("\n".join(str(p) for p in paths)) == paths, "a bare path a line"
    assert pasted_paths(f"{paths[0]} {paths[0]}") == [paths[0]]
    assert file_command("/file " + " ".join(shlex.quote(str(p)) for p in paths)) == paths


def test_ordinary_text_is_no_path(files: dict[str, Path], tmp_path: Path) -> None:
    path = files["plain.txt"]
    for text in (
        "",
        "  \n",
        "hello",
        f"look at {path}",
        f"{path} and more",
        f"{path}x",
        "plain.txt",
        "/",
        "don't",
        "file://elsewhere.example/x",
        "file://[broken",
        "~nobody-of-this-name/x",
        "/nowhere/at/all",
        "x" * 5000,
        f"{path}\n" * 5000,
        "\0",
        f"{path}\0",
        "\ud800",
    ):
        if text == "/":
            continue
        assert pasted_paths(text) == [], text[:50]
    assert pasted_paths("plain.txt", base=tmp_path) == [path]
    assert pasted_paths("'with space.py' plain.txt", base=tmp_path) == [files["with space.py"], path]


def test_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "notes.txt").write_text("x")
    assert pasted_paths("~/notes.txt") == [tmp_path / "notes.txt"]
    assert file_command("/file ~/notes.txt") == [tmp_path / "notes.txt"]


def test_the_command() -> None:
    assert file_command("/file") == [] and file_command("  /file   ") == []
    assert file_command("/file nothing.txt") == [Path("nothing.txt")]
    assert file_command("/file it's broken") == [Path("it's broken")]
    for other in ("", "/files x", "/filex", "file x", "say /file x", "x\n/file y"):
        assert file_command(other) is None, other


@given(st.text(max_size=60))
@example("~\0")
@example("~\ud800")
def test_whatever_is_pasted_nothing_breaks(text: str) -> None:
    assert all(path.exists() for path in pasted_paths(text))
    file_command("/file " + text)


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text", "encoding"),
    [
        (b"", "", "utf-8"),
        ("naïve – 日本\n".encode(), "naïve – 日本\n", "utf-8"),
        (b"\xef\xbb\xbfmarked\n", "marked\n", "utf-8-sig"),
        ("sixteen ü".encode("utf-16"), "sixteen ü", "utf-16"),
        ("big ü".encode("utf-16-be").join([b"\xfe\xff", b""]), "big ü", "utf-16"),
        ("thirty-two".encode("utf-32"), "thirty-two", "utf-32"),
        ("für élan".encode("latin-1"), "für élan", "latin-1"),
        ("“quoted” – für".encode("cp1252"), "“quoted” – für", "cp1252"),
        (b"a\r\nb\rc\n", "a\nb\nc\n", "utf-8"),
        (b"\x1b[31mred\x1b[0m\n\x0c", "\x1b[31mred\x1b[0m\n\x0c", "utf-8"),
        ("äöü".encode() * 20 + b"\xff" + "äöü".encode(), "äöü" * 20 + "\ufffd" + "äöü", "utf-8 (damaged)"),
    ],
)
def test_text_in_any_encoding(tmp_path: Path, data: bytes, text: str, encoding: str) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(data)
    found = read_attachment(path)
    assert found == Attachment("file.txt", str(path), text, len(data), encoding)
    assert Attachment.from_dict(found.as_dict()) == found


def refused(path: Path, **limits: int) -> str:
    with pytest.raises(AttachmentError) as caught:
        read_attachment(path, **limits)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (
        b"GGUF\0\0",
        bytes(range(256)),
        b"\x89PNG\r\n\x1a\n" + os.urandom(2000),
        b"abc\0def",
        b"\x01\x02" * 50,
    ):
        path.write_bytes(data)
        assert "not text" in refused(path)


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    assert "directory" in refused(tmp_path)
    assert "no file" in refused(tmp_path / "missing.txt")
    assert "cannot be read" in refused(Path("x" * 5000))
    assert "cannot be read" in refused(Path("a\0b"))
    assert "no file" in refused(tmp_path / "new\nline")
    os.mkfifo(tmp_path / "pipe")
    assert "regular file" in refused(tmp_path / "pipe"), "and does not wait for its writer"
    (tmp_path / "ring").symlink_to(tmp_path / "ring")
    assert "cannot be read" in refused(tmp_path / "ring")
    (tmp_path / "large").write_bytes(b"x" * 1001)
    assert "too large" in refused(tmp_path / "large", max_bytes=1000)
    assert read_attachment(tmp_path / "large", max_bytes=1001).n_bytes == 1001
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert "too large" in refused(tmp_path / "sparse"), "without reading it"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    assert "permissions" in refused(tmp_path / "secret")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_files_that_say_they_are_empty(tmp_path: Path) -> None:
    assert "Pid:" in read_attachment(Path("/proc/self/status")).text
    assert "too large" in refused(Path("/proc/self/status"), max_bytes=10)


def test_names_that_would_confuse_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "evil\n\x1b[31m\udc80.txt"
    path.write_text("x")
    found = read_attachment(path)
    assert found.name == "evil??[31m?.txt" and found.name.isprintable()
    assert found.path.isprintable()


@given(st.binary(max_size=300))
def test_any_bytes_are_text_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any-bytes"
    path.write_bytes(data)
    try:
        text = read_attachment(path).text
    except AttachmentError:
        return
    text.encode("utf-8")
    assert "\0" not in text and "\r" not in text


FIELDS = st.sampled_from(["name", "path", "text", "n_bytes", "encoding"])


@given(st.dictionaries(FIELDS, st.one_of(st.none(), st.text(), st.integers())))
def test_stored_nonsense_is_still_an_attachment(data: dict[str, object]) -> None:
    found = Attachment.from_dict(data)
    assert Attachment.from_dict(found.as_dict()) == found


# --- the prompt -------------------------------------------------------------------------------------------------------


def attachment(text: str, name: str = "a.py") -> Attachment:
    return Attachment(name, f"/{name}", text, len(text))


def test_files_come_first_each_in_its_fence() -> None:
    first, second = attachment("x = 1\n"), attachment("no line end", "notes")
    assert compose("What is x?", [first, second]) == (
        "File: a.py\n```python\nx = 1\n```\n\nFile: notes\n```\nno line end\n```\n\nWhat is x?"
    )
    assert compose("", [first]) == "File: a.py\n```python\nx = 1\n```"
    assert compose("just text", []) == "just text" and compose("", []) == ""


@given(st.text(alphabet="`~a\n ", max_size=40))
def test_no_file_ends_its_own_fence(text: str) -> None:
    lines = fenced(attachment(text)).split("\n")
    fence = lines[1].removesuffix("python")
    assert lines[-1] == fence and len(fence) >= 3
    assert not any(line.strip() == fence or line.lstrip().startswith(fence) for line in lines[2:-1])
    assert "\n".join(lines[2:-1]) in (text, text.removesuffix("\n"))


def test_tokens_are_counted_with_fence_and_name() -> None:
    seen = []

    def tokenize(text: str) -> list[int]:
        seen.append(text)
        return list(range(len(text.split())))

    assert count_tokens(attachment("one two three\n"), tokenize) == 7
    assert seen == ["File: a.py\n```python\none two three\n```\n\n"]
