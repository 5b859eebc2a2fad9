import re
from itertools import combinations

import matplotlib as mpl
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from rankcollapse import vocabulary
from rankcollapse.figures import style
from rankcollapse.figures.output import save

VARIANTS = {
    "san": "SAN",
    "san_mlp": "SAN + MLP",
    "san_skip": "SAN + skip",
    "transformer": "Transformer",
}


def line(title="text"):
    with style.look():
        figure = Figure(figsize=(2, 1))
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], **style.variant("san").line())
        axes.set_title(title)
    return figure


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def grey(color):
    # CIELAB lightness, 0 to 100, of an sRGB colour.
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    luminance = sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return 116 * luminance ** (1 / 3) - 16


def test_one_page_is_a_pdf_and_a_png(tmp_path):
    written = save({"": line()}, tmp_path / "new" / "figure9")
    assert written == [tmp_path / "new" / "figure9.pdf", tmp_path / "new" / "figure9.png"]
    assert set(files(tmp_path / "new")) == {"figure9.pdf", "figure9.png"}


def test_further_pages_share_the_pdf_and_have_a_png_each(tmp_path):
    save({"linear": line("one"), "log": line("two")}, tmp_path / "figure2")
    made = files(tmp_path)
    assert set(made) == {"figure2.pdf", "figure2.png", "figure2_log.png"}
    assert len(re.findall(rb"/Type /Page\b(?!s)", made["figure2.pdf"])) == 2
    assert made["figure2.png"] != made["figure2_log.png"]


def test_a_dot_in_the_name_is_kept(tmp_path):
    save({"": line()}, tmp_path / "figure.v2")
    assert set(files(tmp_path)) == {"figure.v2.pdf", "figure.v2.png"}


def test_the_same_figure_gives_the_same_bytes(tmp_path, monkeypatch):
    save({"": line(), "log": line()}, tmp_path / "a" / "figure")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")  # another day
    with mpl.rc_context({"pdf.fonttype": 3, "savefig.dpi": 30, "savefig.bbox": "tight"}):
        save({"": line(), "log": line()}, tmp_path / "b" / "figure")
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_files_hold_no_date_and_no_software(tmp_path):
    pdf, png = save({"": line()}, tmp_path / "figure")
    assert b"CreationDate" not in pdf.read_bytes()
    with Image.open(png) as image:
        assert "Software" not in image.info
        assert image.size == (400, 200)


def test_pdf_is_vector_with_text_as_truetype(tmp_path):
    pdf, _ = save({"": line()}, tmp_path / "figure")
    content = pdf.read_bytes()
    assert b"/FontFile2" in content
    assert b"/Type3" not in content
    assert b"/Subtype /Image" not in content


def test_a_page_that_cannot_be_drawn_leaves_the_old_files(tmp_path):
    stem = tmp_path / "figure"
    save({"": line(), "log": line()}, stem)
    before = files(tmp_path)
    with pytest.raises(ValueError, match="Unknown symbol"):
        save({"": line("new"), "log": line(r"$\nonsense$")}, stem)
    assert files(tmp_path) == before


def test_a_folder_that_is_a_file_is_an_os_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="file"):
        save({"": line()}, tmp_path / "file" / "figure")
    assert set(files(tmp_path)) == {"file"}


def test_no_page_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no page"):
        save({}, tmp_path / "figure")
    assert files(tmp_path) == {}


def test_look_ignores_and_restores_the_users_settings():
    with mpl.rc_context({"font.size": 30, "axes.grid": True}):
        with style.look():
            assert mpl.rcParams["font.size"] == style.TEXT_SIZE
            assert mpl.rcParams["axes.grid"] is False
        assert mpl.rcParams["font.size"] == 30
        assert mpl.rcParams["axes.grid"] is True


def test_variants_are_named_as_in_the_paper():
    assert {name: style.variant(name).label for name in vocabulary.VARIANTS} == VARIANTS
    assert list(style.VARIANTS) == list(VARIANTS)


def test_an_unknown_variant_lists_the_known():
    with pytest.raises(ValueError, match="'mlp': known are san, san_mlp, san_skip, transformer"):
        style.variant("mlp")


@pytest.mark.parametrize("curves", [style.VARIANTS, style.MODELS], ids=["variants", "models"])
def test_curves_stay_apart_in_grey_and_by_line_and_by_marker(curves):
    for one, other in combinations(curves.values(), 2):
        assert abs(grey(one.color) - grey(other.color)) > 12
        assert one.linestyle != other.linestyle
        assert one.marker != other.marker
    assert all(grey(curve.color) < 80 for curve in curves.values())


def test_models_have_the_names_of_the_paper():
    names = [
        "bert-base-cased",
        "albert-base-v2",
        "xlnet-base-cased",
        "all-mpnet-base-v2",
        "all-minilm-l6-v2",
    ]
    assert [style.label(name) for name in names] == ["BERT", "ALBERT", "XLNet", "MPNet", "MiniLM"]
    assert [style.model(name).label for name in names] == list(map(style.label, names))


def test_a_checkpoint_that_a_user_brings_keeps_its_name():
    assert style.label("my-model") == "my-model"
    assert style.model("my-model").color == style.MUTED
