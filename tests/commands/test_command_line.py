"""The command line, as a person or a script meets it: every run is a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lcspec.llama import can_fuse_row_by_row
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session
from lcspec.spec.verifiers import VERIFIERS
from tests import forks
from tests import tiny_gguf as tiny
from tests.running import GREEDY, ROUNDS_ALIKE, answer, options, request
from tests.tiny_families import write_family

pytestmark = pytest.mark.model

LCSPEC = (sys.executable, "-c", "from lcspec.cli import main; main()")
QUICK = ("--threads", "1", "--ctx", "256", "--speculate", "off")
PROMPT = "the cat and the dog and the cat and the "

# Presses Ctrl-C (`{at}` steps after the start, `{times}` times) and runs the command line.
INTERRUPTED = """
import os, signal
from lcspec.engine.engine import Engine
step, n = Engine.step, 0
def interrupted(self):
    global n
    n += 1
    if {at} <= n < {at} + {times}:
        os.kill(os.getpid(), signal.SIGINT)
    return step(self)
Engine.step = interrupted
from lcspec.cli import main
main()
"""


def run(
    *arguments: object, stdin: bytes | None = None, command: tuple[str, ...] | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run lcspec; output is text. With a `command` a new interpreter starts, otherwise one is forked."""
    everything = {**os.environ, **env}
    if command is None:
        done = forks.server.run(arguments, stdin or b"", everything)
    else:
        words = [*command, *(a if isinstance(a, bytes) else str(a) for a in arguments)]
        done = subprocess.run(words, input=stdin or b"", capture_output=True, timeout=300, env=everything)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def ok(*arguments: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """A run that must succeed without a word on stderr (unless it asks for some)."""
    done = run(*arguments, **how)
    assert done.returncode == 0, done.stderr
    if not {"--stats", "--lens", "--verbose"}.intersection(arguments):
        assert done.stderr == ""
    return done


def fails(code: int, *arguments: object, **how: Any) -> str:
    """A run that must fail with one line of explanation; returns the line."""
    done = run(*arguments, **how)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr and "internal error" not in done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    if lines[0].startswith("Usage:"):
        assert code == 2
        return lines[-1]
    assert len(lines) == 1 and lines[0].startswith("lcspec: "), done.stderr
    return lines[0]


# --- forks are as good as interpreters --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "MODEL", "-p", PROMPT, "-n", 5, "--temperature", 0, *QUICK),
        ("generate", "MODEL", "-n", "x"),
        ("x",),
        (),
    ],
    ids=["an answer", "a wrong option", "no such command", "help"],
)
def test_a_new_interpreter_says_the_same(llama: Path, arguments: tuple[object, ...]) -> None:
    words = [llama if word == "MODEL" else word for word in arguments]
    forked, new = run(*words), run(*words, command=LCSPEC)
    assert new.returncode == forked.returncode and new.stdout.replace("-c", "lcspec") == forked.stdout
    assert new.stderr.replace("Usage: -c", "Usage: lcspec").replace("'-c", "'lcspec") == forked.stderr


# --- generate ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain_text(llama: Path) -> str:
    """What `llama` says after PROMPT in 24 greedy tokens."""
    with open_session(options(llama)) as session:
        return answer(session.engine, request(session.prompt_ids(PROMPT), "off", 24)).text


def test_the_json_object(llama: Path, llama_draft: Path, plain_text: str) -> None:
    done = ok(
        *("generate", llama, "-p", PROMPT, "-n", 24, "--temperature", 0, "--seed", 5, "--draft", llama_draft),
        *("--speculate", "ngram,model:p_min=0", "--threads", 1, "--ctx", 256, "--json", "--ignore-eos"),
    )
    told = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    kinds: dict[str, type | tuple[type, ...]] = {
        "text": str,
        "tokens": list,
        "logprobs": list,
        "finish_reason": str,
        "prompt_tokens": int,
        "completion_tokens": int,
        "seed": int,
        "lossless": bool,
        "stats": dict,
    }
    assert set(told) == set(kinds)
    assert all(isinstance(told[key], kind) for key, kind in kinds.items())
    assert told["text"] == plain_text
    assert all(isinstance(t, int) for t in told["tokens"])
    assert all(isinstance(p, float) and p <= 0 for p in told["logprobs"])
    assert len(told["tokens"]) == len(told["logprobs"]) == told["completion_tokens"] == 24
    assert (told["finish_reason"], told["seed"], told["lossless"]) == ("length", 5, True)
    stats = told["stats"]
    numbers = ("mean_acceptance_length", "decode_seconds", "target_seconds", "draft_seconds", "overhead_seconds")
    assert all(isinstance(stats[key], float) for key in (*numbers, "tokens_per_second", "prefill_seconds"))
    assert all(isinstance(stats[key], int) for key in ("target_steps", "drafted", "accepted"))
    assert isinstance(stats["accepted_by_depth"], list) and sum(stats["accepted_by_depth"]) == stats["accepted"]
    assert stats["accepted"] > 0
    assert "model" in stats["by_drafter"]
    assert all(set(tally) == {"drafted", "accepted"} for tally in stats["by_drafter"].values())
    assert sum(stats["widths"].values()) == stats["target_steps"]


def test_the_prompt_comes_from_an_option_a_file_or_stdin(llama: Path, plain_text: str, tmp_path: Path) -> None:
    common = ("generate", llama, "-n", 24, "--temperature", 0, "--ignore-eos", *QUICK)
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT)
    assert ok(*common, "-p", PROMPT).stdout == plain_text + "\n"
    assert ok(*common, "-f", file).stdout == plain_text + "\n"
    assert ok(*common, stdin=PROMPT.encode()).stdout == plain_text + "\n"


def test_chat_uses_the_template(demo_session: Session) -> None:
    message = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]
    ids, stop = demo_session.chat_ids(message)
    assert stop == ()
    expected = answer(demo_session.engine, request(ids, "off", 20, sampling=GREEDY, ignore_end=False))
    done = ok(
        *("generate", "-p", "Hello!", "--chat", "--system", "Be brief.", "-n", 20, "--temperature", 0),
        *("--speculate", "off", "--threads", 1, "--json"),
    )
    told = json.loads(done.stdout)
    assert told["prompt_tokens"] == len(ids)
    assert told["text"] == expected.text
    assert "--chat" in fails(2, "generate", "-p", "Hello!", "--system", "Be brief.")


def test_a_model_thinks_unless_it_may_not_or_a_schema_leaves_no_room(tmp_path: Path) -> None:
    opening = "{% if enable_thinking %}<think>{% endif %}"
    path = tiny.write_llama(tmp_path / "thinker.gguf", chat_template=tiny.CHATML_TEMPLATE + opening)
    common = ("generate", path, "--chat", "-p", "Hello!", "-n", 2, "--json", *QUICK)
    more = ([], ["--think"], ["--no-think"], ["--json-schema", "{}"])
    thinks, too, never, schema = (json.loads(ok(*common, *some).stdout)["prompt_tokens"] for some in more)
    assert thinks == too > never == schema


def test_stats_go_to_stderr(llama: Path, plain_text: str) -> None:
    done = ok(
        *("generate", llama, "-p", PROMPT, "-n", 24, "--temperature", 0, "--ignore-eos", "--stats", "--seed", 9),
        *("--threads", 1, "--ctx", 256, "--speculate", "ngram:min_n=1"),
    )
    assert done.stdout == plain_text + "\n"
    for expected in ("24 tokens", "ended by length", "seed 9", "target steps", "drafted", "ngram:", "time:"):
        assert expected in done.stderr
    lossy = ok("generate", llama, "-p", PROMPT, "-n", 4, "--verifier", "typical", "--stats", *QUICK)
    assert "lossy" in lossy.stderr


@pytest.mark.parametrize("verifier", [name for name, info in VERIFIERS.items() if not info.lossless])
def test_a_lossy_text_says_so_without_being_asked(llama: Path, verifier: str) -> None:
    done = run("generate", llama, "-p", PROMPT, "-n", 4, "--verifier", verifier, *QUICK)
    assert done.returncode == 0
    assert done.stderr == "the verifier is lossy: this is not the text that plain decoding gives\n"


def test_the_lens_colours_accepted_tokens(llama: Path, llama_draft: Path, plain_text: str) -> None:
    common = (
        *("generate", llama, "-p", PROMPT, "-n", 24, "--temperature", 0, "--ignore-eos", "--lens"),
        *("--draft", llama_draft, "--speculate", "model:p_min=0", "--threads", 1, "--ctx", 256),
    )
    tinted = ok(*common)
    assert "\x1b[32m" in tinted.stdout
    assert re.sub(r"\x1b\[\d+m", "", tinted.stdout) == plain_text + "\n"
    assert "drafted by" in tinted.stderr and "model" in tinted.stderr
    plain = ok(*common, NO_COLOR="1")
    assert plain.stdout == plain_text + "\n"


def test_stop_strings_and_the_token_limit(llama: Path, plain_text: str) -> None:
    common = ("generate", llama, "-p", PROMPT, "--temperature", 0, "--ignore-eos", "--json", *QUICK)
    stop = plain_text[5:8]
    told = json.loads(ok(*common, "-n", 24, "--stop", "never there", "--stop", stop).stdout)
    assert (told["text"], told["finish_reason"]) == (plain_text[: plain_text.index(stop)], "stop")
    nothing = json.loads(ok(*common, "-n", 0).stdout)
    assert (nothing["text"], nothing["tokens"], nothing["finish_reason"]) == ("", [], "length")
    full = json.loads(ok(*common).stdout)
    assert full["finish_reason"] == "context"
    assert full["prompt_tokens"] + full["completion_tokens"] == 256


def test_exact_and_seeds_on_the_command_line(llama: Path, llama_draft: Path) -> None:
    common = ("generate", llama, "-p", PROMPT, "-n", 30, "--draft", llama_draft, "--threads", 1, "--exact", "--json")
    texts = [
        json.loads(ok(*common, "--seed", 2**63, "--speculate", strategy).stdout)["tokens"]
        for strategy in ("off", "model:branch=3", "ngram,model", "auto")
    ]
    assert texts == [texts[0]] * 4
    assert json.loads(ok(*common, "--seed", 4, "--speculate", "off").stdout)["tokens"] != texts[0]


def test_a_schema_gives_json(llama: Path, tmp_path: Path) -> None:
    schema = '{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}'
    file = tmp_path / "schema.json"
    file.write_text(schema)
    for given in (schema, file):
        done = ok("generate", llama, "-p", "x", "-n", 60, "--json-schema", given, "--seed", 1, "--threads", 1)
        assert isinstance(json.loads(done.stdout)["ok"], bool)


def test_an_expected_text_is_drafted(llama: Path, plain_text: str, tmp_path: Path) -> None:
    file = tmp_path / "expected.txt"
    file.write_bytes(plain_text.encode())
    done = ok(
        *("generate", llama, "-p", PROMPT, "-n", 24, "--temperature", 0, "--ignore-eos", "--json", "--threads", 1),
        *("--prediction", file, "--speculate", "prediction"),
    )
    told = json.loads(done.stdout)
    assert told["text"] == plain_text
    assert "prediction" in told["stats"]["by_drafter"]


def test_without_a_model_the_bundled_pair_serves() -> None:
    told = json.loads(ok("generate", "-p", "def add(a, b):", "-n", 12, "--threads", 1, "--json").stdout)
    assert told["completion_tokens"] <= 12 and told["lossless"]


def test_a_recurrent_model_just_works(recurrent: Path) -> None:
    how = ("generate", recurrent, "-p", PROMPT, "-n", 12, "--seed", 7, "--threads", 1, "--json")
    told, plain = (json.loads(ok(*how, "--speculate", strategy).stdout) for strategy in ("auto", "off"))
    assert told["completion_tokens"] == 12 and told["text"] == plain["text"]


def test_an_empty_prompt_begins_a_text(llama: Path) -> None:
    for how in ({}, {"stdin": b""}):
        arguments = ("-p", "") if how == {} else ()
        told = json.loads(ok("generate", llama, *arguments, "-n", 3, "--json", *QUICK, **how).stdout)
        assert told["prompt_tokens"] == 1


def test_an_unwritable_cache_is_no_error(llama: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    ok("generate", llama, "-p", "x", "-n", 3, "--threads", 1, LCSPEC_CACHE_DIR=str(blocked))


# --- interruptions ----------------------------------------------------------------------------------------------------


def interrupted(at: int, times: int = 1) -> tuple[str, ...]:
    return (sys.executable, "-c", INTERRUPTED.format(at=at, times=times))


def test_control_c_ends_an_answer_cleanly(llama: Path, plain_text: str) -> None:
    common = ("generate", llama, "-p", PROMPT, "--temperature", 0, "--ignore-eos", *QUICK)
    done = run(*common, "--json", command=interrupted(at=6))
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr, told["finish_reason"]) == (130, "", "cancelled")
    assert 0 < told["completion_tokens"] < 12
    done = run(*common, "--stats", command=interrupted(at=9))
    assert done.returncode == 130
    assert done.stdout.endswith("\n") and plain_text.startswith(done.stdout[:-1])
    assert "ended by cancelled" in done.stderr


def test_a_second_control_c_does_not_wait(llama: Path) -> None:
    done = run("generate", llama, "-p", PROMPT, *QUICK, command=interrupted(at=4, times=9))
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_control_c_is_not_lost_while_the_library_calls_back(llama: Path) -> None:
    code = (
        "import ctypes, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell in the background has it ignored
        "import lcspec.commands.generate as generate\n"
        "callback = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))\n"
        "generate.show_heads_note = lambda *_: callback()\n"
        "from lcspec.cli import main\n"
        "main()\n"
    )
    done = run("generate", llama, "-p", PROMPT, "-n", 300, "--ignore-eos", *QUICK, command=(sys.executable, "-c", code))
    assert (done.returncode, done.stderr.strip()) == (130, "")


def test_a_reader_that_goes_away(llama: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    arguments = [*LCSPEC, "generate", str(llama), "-p", PROMPT, "-n", "50", *QUICK]
    try:
        done = subprocess.run(arguments, stdout=writing, stderr=subprocess.PIPE, timeout=300)
    finally:
        os.close(writing)
    assert done.returncode in (1, 141)  # click's, and that of a process that died of SIGPIPE
    assert done.stderr == b""


@pytest.mark.parametrize("names, said", [("off,ngram", "'off' stands"), ("ngram,auto", "'auto' stands")])
def test_auto_and_off_stand_alone(llama: Path, names: str, said: str) -> None:
    assert said in fails(2, "generate", llama, "-p", PROMPT, "--speculate", names)


def test_closed_standard_streams(llama: Path) -> None:
    arguments = [*LCSPEC, "generate", str(llama), "-p", PROMPT, "-n", "3", *QUICK]
    for closed in (">&-", "<&- >&- 2>&-"):
        done = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *arguments], stderr=subprocess.PIPE, timeout=300)
        assert done.returncode == 0, done.stderr
        assert b"error" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk(llama: Path) -> None:
    with open("/dev/full", "wb") as full:
        arguments = [*LCSPEC, "generate", str(llama), "-p", PROMPT, "-n", "8", *QUICK]
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, timeout=300)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr and b"No space left" in done.stderr


def test_a_model_on_which_the_library_gives_up(tmp_path: Path) -> None:
    """Its header is sound, so the first to notice is an assertion in the middle of a decode or a load."""
    for name, changes in (("qwen3", {"rope.dimension_count": 1000}), ("deepseek2", {"expert_used_count": 99})):
        model = write_family(name, tmp_path / f"{name}.gguf", **changes)  # type: ignore[arg-type]
        line = fails(1, "generate", model, "-p", PROMPT, "-n", 2, *QUICK)
        assert "llama.cpp gave up at" in line and "GGML_ASSERT" in line and "get the file again" in line


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["generate", "inspect"])
@pytest.mark.parametrize(
    "what, said",
    [
        ("missing", "does not exist"),
        ("a directory", "directory"),
        ("not a GGUF", "not a GGUF"),
        ("truncated data", "truncated"),
        ("truncated header", "truncated"),
        ("empty", "empty"),
        ("no tokenizer", "no tokenizer"),
        ("no vocabulary", "no tokenizer"),
        ("duplicate token", "twice"),
        ("unknown architecture", "nosuchthing"),
    ],
)
def test_files_that_are_no_models(bad_files: dict[str, Path], command: str, what: str, said: str) -> None:
    arguments = ("-p", "x", "-n", 2) if command == "generate" else ()
    assert said in fails(1, command, bad_files[what], *arguments)


@pytest.mark.parametrize("what", ["missing", "truncated data", "not a GGUF", "no tokenizer"])
def test_draft_files_that_are_no_models(llama: Path, bad_files: dict[str, Path], what: str) -> None:
    said = fails(1, "generate", llama, "-p", "x", "-n", 2, "--threads", 1, "--draft", bad_files[what])
    assert bad_files[what].name in said


def test_a_draft_with_another_vocabulary(llama: Path, other_vocabulary: Path, folder: Path) -> None:
    smaller = tiny.write_llama(folder / "smaller.gguf", n_vocab=270)
    for draft in (other_vocabulary, smaller):
        for strategy in ("auto", "model"):
            said = fails(
                *(1, "generate", llama, "-p", "x", "-n", 2, "--threads", 1, "--draft", draft, "--speculate", strategy),
                *("--verifier", "rejection"),  # coupled drafts through text
            )
            assert "cannot draft for llama.gguf" in said and "same family" in said


def test_a_prompt_longer_than_the_context(llama: Path) -> None:
    said = fails(1, "generate", llama, "-p", "a" * 400, *QUICK)
    assert "256" in said and "--ctx" in said


@pytest.mark.parametrize(
    "option, text",
    [
        ("--grammar-file", "root ::= " + "(" * 9000),
        (
            "--grammar-file",
            "root ::= "
            + " | ".join(f"r{i}" for i in range(300))
            + "".join(
                f"\nr{i} ::= [a-z] r{(i * 7 + 1) % 300} | [a-z] r{(i * 3 + 2) % 300} | [a-z]" for i in range(300)
            ),
        ),
        ("--json-schema", '{"items": ' * 9000 + "{}" + "}" * 9000),
    ],
    ids=["nests", "ambiguous", "deep schema"],
)
def test_grammars_that_would_explode(llama: Path, tmp_path: Path, option: str, text: str) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    assert "the " in fails(2, "generate", llama, "-p", "x", "-n", 200, option, file, *QUICK)


@pytest.mark.parametrize("grammar", ['root ::= "a', 'foo ::= "a"', "root ::= bar", 'root ::= root "a"', "", "root"])
def test_invalid_grammars(llama: Path, tmp_path: Path, grammar: str) -> None:
    file = tmp_path / "bad.gbnf"
    file.write_text(grammar)
    assert "grammar" in fails(2, "generate", llama, "-p", "x", "-n", 2, "--grammar-file", file, *QUICK)


@pytest.mark.parametrize(
    "schema", ["{", '{"type": "nonsense"}', '{"$ref": "#/nope"}', "/nowhere/schema.json", '{"type": 5}', "[1]"]
)
def test_invalid_schemas(llama: Path, schema: str) -> None:
    said = fails(2, "generate", llama, "-p", "x", "-n", 2, "--json-schema", schema, *QUICK)
    assert "schema" in said and ("must be an object" in said) is (schema == "[1]")


@pytest.mark.parametrize(
    "arguments",
    [
        ("-n", "-1"),
        ("-n", "many"),
        ("--max-draft", "-1"),
        ("--ctx", "-5"),
        ("--threads", "-1"),
        ("--gpu-layers", "-7"),
        ("--gpu-layers", "some"),
        ("--temperature", "nan"),
        ("--temperature", "inf"),
        ("--temperature", "-1"),
        ("--top-p", "1.5"),
        ("--min-p", "-0.1"),
        ("--repeat-penalty", "0"),
        ("--seed", "-2"),
        ("--seed", str(2**64)),
        ("--seed", "x"),
        ("--kv-type", "q9"),
        ("--speculate", "nosuch"),
        ("--speculate", "ngram:nonsense=1"),
        ("--speculate", "ngram:max_n=x"),
        ("--speculate", "ngram:=3"),
        ("--speculate", "model"),
        ("--verifier", "nosuch"),
        ("--verifier", "typical:epsilon=x"),
        ("--verifier", "coupled:epsilon=0.1"),
        ("--verifier", "typical", "--exact"),
        ("--prediction", "/nowhere"),
        ("--grammar-file", "/nowhere"),
        ("--grammar-file", "/nowhere", "--json-schema", "{}"),
        ("--no-such-option",),
        ("another-model.gguf",),
    ],
    ids=" ".join,
)
def test_bad_options_are_usage_errors(llama: Path, arguments: tuple[str, ...]) -> None:
    fails(2, "generate", llama, "-p", "x", "--threads", 1, *arguments)


def test_bad_prompts(llama: Path, tmp_path: Path) -> None:
    fails(2, "generate", llama, "-f", tmp_path / "missing.txt", *QUICK)
    fails(2, "generate", llama, "-f", tmp_path, *QUICK)
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"caf\xe9 \xff\xfe")
    assert "UTF-8" in fails(2, "generate", llama, "-f", binary, *QUICK)
    assert "UTF-8" in fails(2, "generate", llama, stdin=b"\xff\xfe\xfd", command=LCSPEC)
    fails(2, "generate", llama, "-p", "x", "-f", binary, *QUICK)
    if os.geteuid() != 0:
        binary.chmod(0)
        assert "Permission" in fails(2, "generate", llama, "-f", binary, *QUICK)
    fails(1, "generate", llama, "-p", b"half a character: \xed\xa0\xbd", *QUICK)


def test_text_the_vocabulary_has_no_bytes_for(folder: Path) -> None:
    for write in (tiny.write_spm_missing_bytes, tiny.write_bpe_missing_bytes):
        model = write(folder / f"{write.__name__}.gguf")
        assert "'é'" in fails(1, "generate", model, "-p", "caf\u00e9", "-n", 2, *QUICK)
        ok("generate", model, "-p", "coffee", "-n", 2, *QUICK)
        ok("generate", model, "-p", "coffee", "-n", 2, "--threads", 1)  # measures with a text of its own


def test_a_recurrent_model_drafts_and_is_exact_where_it_can_be(recurrent: Path) -> None:
    common = ("generate", recurrent, "-p", "x", "-n", 16, "--temperature", 0, "--threads", 1, "--json")
    plain, drafted = (
        json.loads(ok(*common, "--ignore-eos", "--speculate", how).stdout) for how in ("off", "ngram:min_n=1")
    )
    assert drafted["tokens"] == plain["tokens"]
    if can_fuse_row_by_row() and ROUNDS_ALIKE:
        assert json.loads(ok(*common, "--ignore-eos", "--exact").stdout)["tokens"] == plain["tokens"]
    else:
        assert "exact" in fails(1, "generate", recurrent, "-p", "x", "--exact", "--threads", 1)


def test_configuration_files(llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[generate]\nmax-tokens = 3\nthreads = 1\nspeculate = "off"\n')
    told = json.loads(ok("--config", file, "generate", llama, "-p", "x", "--json", "--ignore-eos").stdout)
    assert told["completion_tokens"] == 3
    file.write_text("[generate\n")
    fails(2, "--config", file, "generate", llama, "-p", "x")
    fails(2, "--config", tmp_path / "none.toml", "generate", llama, "-p", "x")
    file.write_text("[generate]\nmax-tokens = -3\n")
    told = fails(2, "--config", file, "generate", llama, "-p", "x")
    assert f"{file}: [generate]: max-tokens: -3 is not" in " ".join(told.split())


def test_a_configuration_file_calls_options_as_the_command_line_does(llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[generate]\ntemp = 0\njson = true\nn = 1\n")
    assert "there is no option 'n'" in fails(2, "--config", file, "generate", llama, "-p", "x")
    file.write_text(
        '[generate]\ntemp = 0\njson = true\nmax-tokens = 8\nthreads = 1\nspeculate = "off"\nignore-eos = true\n'
    )
    text = json.loads(ok("--config", file, "generate", llama, "-p", "x").stdout)["text"]
    with file.open("a", encoding="utf-8") as more:  # one value where the option may be given several times
        more.write(f"stop = {json.dumps(text[2])}\n")
    assert json.loads(ok("--config", file, "generate", llama, "-p", "x").stdout)["text"] == text[: text.index(text[2])]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("temperature = 0", "'temperature' is not the table of a command"),
        ("[generat]", "'generat' is not the table of a command"),
        ("[generate]\ntemperatur = 0", "[generate]: there is no option 'temperatur'"),
    ],
)
def test_a_mistyped_name_in_a_configuration_file_is_said(llama: Path, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    assert said in fails(2, "--config", file, "generate", llama, "-p", "x")


def test_another_commands_options_in_a_configuration_file_do_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[serve]\nslotz = 1\n[draft.distil]\nlayerz = 1\n")
    ok("--config", file, "inspect", "--help")
    assert "[draft] [distil]: there is no option 'layerz'" in fails(2, "--config", file, "draft", "store", "x")


# --- inspect ----------------------------------------------------------------------------------------------------------

INSPECTED = {
    *("file", "name", "architecture", "parameters", "quantization", "tensor_types", "file_bytes", "context", "layers"),
    *("embedding", "sliding_window", "recurrent", "hybrid", "vocabulary", "chat_template", "licence", "speculation"),
    *(
        "trees",
        "rollback",
        "max_rollback",
        "writes_text",
        "mtp_layers",
        "drafts_with_mtp",
        "bundled_head",
        "distilled_from",
        "redecodes",
        "longest_chain",
    ),
}


@pytest.mark.parametrize(
    "kind, architecture, speculation, window",
    [
        ("llama", "llama", "tree", None),
        ("sliding_window", "cohere2", "tree", 16),
        ("recurrent", "mamba", "chain", None),
        ("hybrid", "lfm2", "chain", None),
    ],
)
def test_inspect_every_kind(
    request: pytest.FixtureRequest, kind: str, architecture: str, speculation: str, window: int | None
) -> None:
    path: Path = request.getfixturevalue(kind)
    told = json.loads(ok("inspect", path, "--json").stdout)
    assert set(told) == INSPECTED
    assert (told["architecture"], told["speculation"], told["sliding_window"]) == (architecture, speculation, window)
    assert (told["recurrent"], told["hybrid"]) == (kind == "recurrent", kind == "hybrid")
    assert told["trees"] is (speculation == "tree")
    assert (told["rollback"], told["redecodes"]) == (kind != "recurrent", kind == "recurrent")
    assert (told["context"], told["layers"], told["embedding"]) == (512, 2, 64)
    assert told["vocabulary"] == {
        "size": 288,
        "tokenizer": "gpt2",
        "pre_tokenizer": "gpt-2",
        "covers_all_bytes": True,
        "missing_bytes": [],
    }
    assert told["chat_template"] is (kind == "llama")
    assert told["licence"] == "mit" and told["bundled_head"] is None
    assert told["file_bytes"] == path.stat().st_size
    shown = ok("inspect", path).stdout
    assert architecture in shown and "288 tokens" in shown


def test_inspect_the_bundled_model(demo: tuple[Path, Path]) -> None:
    told = json.loads(ok("inspect", "--json").stdout)
    assert (told["architecture"], told["quantization"], told["chat_template"]) == ("llama", "Q8_0", True)
    assert told["licence"]
    assert "trees and chains" in ok("inspect").stdout


def test_help_and_version() -> None:
    assert "generate" in ok("--help").stdout
    for command in ("generate", "chat", "serve"):
        told = ok(command, "--help").stdout
        assert "--verifier" in told and all(name in told for name in VERIFIERS)
    assert "--exact" in ok("generate", "-h").stdout
    assert ok("--version").stdout.startswith("lcspec")
    fails(2, "nosuchcommand")


def test_parameters_out_of_range_are_those_of_the_library_too() -> None:
    """What the command line refuses is refused by every other front end, too."""
    for bad in ({"temperature": float("nan")}, {"seed": -2}, {"top_p": 2.0}):
        with pytest.raises(Exception, match=next(iter(bad))):
            SamplingParams(**bad)  # type: ignore[arg-type]
