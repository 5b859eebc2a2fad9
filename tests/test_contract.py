"""What is stated in more than one place must agree."""

import ast
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from rankcollapse.architectures.relative import TERMS
from rankcollapse.config import RELATIVE, load_config
from rankcollapse.sources import PACKAGE, source_files

ROOT = Path(__file__).parent.parent
STAGES = ("checkpoints", "residuals", "tasks", "paths", "figures")

# Data flows to the right: a module imports from those that stand before it.
ORDER = [
    *("errors", "vocabulary", "files", "precision", "progress", "sources", "config_sections"),
    *("config", "jobs", "tracking", "checkpoints", "corpus", "architectures", "ablation"),
    *("states", "measures", "products", "evaluate", "tables", "residuals", "published"),
    *("intervals", "paths"),
    # trained experiments
    *("tasks", "block", "san", "noise", "training_checkpoint", "training_clock", "training"),
    *("sampled_paths", "experiments", "trained", "frozen_paths", "task_tables", "bench", "reread"),
    *("controls", "circle_runs"),
    # paths and bounds
    *("trace", "sweep", "decomposition", "path_tables", "path_measures", "subjects"),
    *("sentences", "path_studies", "theory", "bound_tables", "bounds", "bound_chains"),
    *("sublayers", "bound_claims", "bound_pieces", "bound_studies"),
    *("rates", "relative_tables", "relative", "asymptote", "component_settings"),
    *("component_networks", "components"),
    *("component_claims", "path_claims", "chained_tables", "chained_measures", "chained"),
    "chained_study",
    # what is made of them
    *("figures", "verdicts", "claims", "chained_verdicts", "report", "mlflow_store"),
    *("mlflow_runs", "doctor", "cli"),
]


def stage(name):
    return yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"][name]


def code_of_rules(name):
    """Return the files that the rules of a stage name as their code."""
    text = (ROOT / f"workflow/rules/{name}.smk").read_text()
    modules = {
        word
        for call in re.findall(r"source_files\(([^)]*)\)", text)
        for word in re.findall(r'"([a-z0-9_.]+)"', call)
    }
    if name == "checkpoints":
        from rankcollapse.jobs import SOURCE_MODULES, TEXT_MODULES

        modules |= {module for group in SOURCE_MODULES.values() for module in group}
        modules |= set(TEXT_MODULES)
    if name in ("residuals", "paths"):
        from rankcollapse.architectures import KNOWN

        modules |= {f"architectures.{architecture}" for architecture in KNOWN}
    if name == "paths":
        from rankcollapse.jobs import STUDY_MODULES

        modules |= {f"architectures.parts.{architecture}" for architecture in KNOWN}
        modules |= {module for group in STUDY_MODULES.values() for module in group}
    if name == "figures":
        from rankcollapse.figures import FIGURES

        modules |= {f"figures.{figure}" for figure in FIGURES}
    return source_files(*modules)


@pytest.mark.parametrize("name", STAGES)
def test_dvc_lists_the_code_that_the_rules_import(name):
    listed = [path for path in stage(name)["deps"] if path.startswith("src/")]
    assert sorted(listed) == code_of_rules(name)


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_runs_its_own_file_and_depends_on_it(name):
    assert stage(name)["cmd"] == (
        f"snakemake -s workflow/rules/{name}.smk --configfile config/${{profile}}.yaml"
    )
    assert {"workflow/rules/common.smk", f"workflow/rules/{name}.smk"} <= set(stage(name)["deps"])


def test_every_setting_that_changes_a_number_is_a_parameter_of_a_stage():
    listed = {key for name in STAGES for keys in stage(name)["params"][0].values() for key in keys}
    config = load_config(ROOT / "config/embedded.yaml")
    # Which profile it is and where the report goes changes no number.
    assert listed == set(type(config).model_fields) - {"profile", "report"}


def imports(path):
    """Yield the top-level modules of the package that a file imports at run time or for types."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[0] == "rankcollapse":
                yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]


def test_imports_flow_one_way():
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if module == "__init__":
            continue
        assert module in ORDER, f"give {module} its place in the order"
        wrong += [
            f"{module} imports {other}"
            for other in imports(path)
            if other != module and ORDER.index(other) > ORDER.index(module)
        ]
    assert wrong == []


def test_the_config_knows_the_architectures_with_relative_positions():
    assert set(RELATIVE) == set(TERMS)


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_environment_yml_installs_what_pyproject_asks_for():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    pip = next(entry for entry in environment["dependencies"] if isinstance(entry, dict))["pip"]
    assert pip == project()["dependencies"]


def test_the_lock_holds_every_pinned_version():
    versions = {name.lower().replace("_", "-"): version for name, version in locked().items()}
    groups = [project()["dependencies"], *project()["optional-dependencies"].values()]
    for requirement in (line for group in groups for line in group):
        name, version = requirement.split("==")
        assert versions[name.lower().replace("_", "-")] == version


def test_each_config_is_a_profile_of_its_own_name():
    for name in ("embedded", "paper", "smoke"):
        assert load_config(ROOT / f"config/{name}.yaml").profile == name


def test_embedded_has_the_seeds_and_models_it_promises():
    config = load_config(ROOT / "config/embedded.yaml")
    runs = {run.name for run in config.runs()}
    for model in ("bert-base-cased", "albert-base-v2", "xlnet-base-cased"):
        seeds = config.checkpoints[f"{model}-init"].seeds
        assert len(seeds) >= 6
        assert {f"{model}-init-{seed}.wikibio.float32" for seed in seeds} <= runs
        assert (
            len([run for run in runs if run.startswith(f"{model}-init-") and "plain" in run]) >= 2
        )
    for model in ("all-mpnet-base-v2", "all-minilm-l6-v2"):
        assert {f"{model}.wikibio.float64", f"{model}.wikibio.float32"} <= runs


def test_the_workflow_knows_what_each_figure_reads():
    from rankcollapse.figures import FIGURES
    from rankcollapse.jobs import FIGURE_TABLES

    reads = {name: import_module(f"rankcollapse.figures.{name}").READS for name in FIGURES}
    assert {name: tuple(tables) for name, tables in reads.items()} == FIGURE_TABLES


def test_no_profile_merges_into_another():
    for path in (ROOT / "profiles").glob("*/config.yaml"):
        assert yaml.safe_load(path.read_text())["configfile"] == ["config/embedded.yaml"]
    for path in [ROOT / "Snakefile", *(ROOT / "workflow").rglob("*.smk")]:
        assert not re.search(r"^configfile:", path.read_text(), re.MULTILINE)
