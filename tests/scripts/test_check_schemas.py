"""The check of many schemas: it counts what ended, and says what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from lcspec.session import Session
from scripts import check_schemas

pytestmark = [pytest.mark.model, pytest.mark.slow]


def test_a_few_schemas(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    options = ["--only", "minimum", "--only", "condition", "--temperatures", "0,1.5", "-n", "60", "--out", str(out)]
    done = CliRunner().invoke(check_schemas.main, options)
    assert done.exit_code == 0, done.output
    assert "2 schemas at temperatures 0,1.5" in done.output and "4 cases" in done.output and "0 wrong" in done.output
    assert out.read_text().count('"schema": "minimum"') == 2


def test_what_does_not_validate_is_told(demo_session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_schemas.check(demo_session, "boolean", 0.0, ["auto"], 20, 1)["wrong"] == []
    monkeypatch.setitem(check_schemas.SCHEMAS, "boolean", {"type": "integer", "minimum": 1, "maximum": 9})
    plain = check_schemas.validate
    monkeypatch.setattr(check_schemas, "validate", lambda name, text: plain("null", text))
    (line,) = check_schemas.check(demo_session, "boolean", 0.0, ["auto"], 20, 1)["wrong"]
    assert line.startswith("not valid: ValidationError")


def test_another_text_is_told(demo_session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"off": "true", "auto": "false"}
    monkeypatch.setattr(check_schemas, "one", lambda session, prompt, sampling, strategy, n: (texts[strategy], "stop"))
    (line,) = check_schemas.check(demo_session, "boolean", 0.0, ["auto"], 20, 1)["wrong"]
    assert line.startswith("auto: another text")
