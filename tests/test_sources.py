from pathlib import Path

import pytest

from rankcollapse import sources
from rankcollapse.sources import source_files

ROOT = Path(__file__).parent.parent
FILES = {
    "__init__.py": "from rankcollapse import a",
    "cli.py": "import rankcollapse.a",
    "a.py": "from rankcollapse import b\nimport numpy, os.path\nfrom pathlib import Path",
    "b.py": "def late():\n    import rankcollapse.c as other",
    "c.py": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from rankcollapse.d import name\n"
        "else:\n    name = 1\n"
        "from rankcollapse.e.part import something\n"
    ),
    "d.py": "",
    "e/__init__.py": "from rankcollapse.f import name",
    "e/part.py": "import rankcollapse.a",
    "e/other.py": "",
    "f.py": "try:\n    from rankcollapse import missing, a\nexcept ImportError:\n    pass",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    for name, text in FILES.items():
        path = tmp_path / "rankcollapse" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(sources, "PACKAGE", tmp_path / "rankcollapse")


def paths(*names):
    return [f"src/rankcollapse/{name}" for name in names]


@pytest.mark.usefixtures("package")
def test_imports_are_followed_to_the_end():
    everything = paths("a.py", "b.py", "c.py", "e/__init__.py", "e/part.py", "f.py")
    assert source_files("a") == everything
    assert source_files("e.part") == everything
    assert source_files("f") == everything


@pytest.mark.usefixtures("package")
def test_what_is_not_imported_is_left_out():
    assert source_files("d") == paths("d.py")
    assert source_files("e.other", "d") == paths("d.py", "e/other.py")


@pytest.mark.usefixtures("package")
def test_an_unknown_module_is_refused():
    with pytest.raises(ValueError, match="has no module 'g'"):
        source_files("a", "g")


def test_measuring_depends_on_no_architecture_and_no_figure():
    files = source_files("residuals")
    assert set(paths("measures.py", "residuals.py", "tables.py", "files.py")) < set(files)
    assert not [path for path in files if "figures" in path or "checkpoints" in path]
    assert "src/rankcollapse/evaluate.py" not in files
    assert "src/rankcollapse/cli.py" not in files


def test_evaluation_depends_on_no_measure():
    files = source_files("evaluate")
    assert "src/rankcollapse/ablation.py" in files
    assert "src/rankcollapse/measures.py" not in files


def test_every_file_is_there():
    for module in ("evaluate", "residuals", "verdicts", "tracking"):
        for path in source_files(module):
            assert (ROOT / path).is_file()
