"""Check the figures of finished runs: what they show, whether it can be read, and what is written."""

from __future__ import annotations

import json
import re
import sys
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.fake_records import RELATIONS, SESSION, a_record, decided, measured_study, write_history
from helpers.fake_runs import make_run, make_runs

from limbeck.analysis.record import Record, write_record
from limbeck.compare.entries import read_entries
from limbeck.errors import MissingExtra, RunError
from limbeck.report.data import gather
from limbeck.report.drawing import INK, inline_svg, save
from limbeck.report.figures import all_figures
from limbeck.report.layout import COLOURS, look

HOSTILE = "_<b>&\"'$x$\n]"
SVG = "{http://www.w3.org/2000/svg}"
KINDS = {
    "trade-off",
    "curves",
    "restoration",
    "heat maps",
    "diagonals",
    "layers",
    "relation difference",
    "intra-class similarity",
    "tokens",
    "calibration",
}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return measured_study(tmp_path_factory.mktemp("figures") / "study", ["ft", "kd", HOSTILE], ["glue/rte"])


@pytest.fixture(scope="module")
def drawn(study):
    return all_figures(gather(read_entries([study])))


@pytest.fixture(scope="module")
def drawn_again(study):
    return all_figures(gather(read_entries([study])))


@pytest.fixture(scope="module")
def svgs(drawn):
    return {found.name: inline_svg(found) for found in drawn}


def figures(folder, kind):
    return [found for found in all_figures(gather(read_entries([folder]))) if found.kind == kind]


def only(folder, kind):
    (found,) = figures(folder, kind)
    return found


def panels(found):
    return [axes for axes in found.figure.axes if axes.get_label() != COLOURS]


def texts(found):
    """Find everything that is written in a figure, with its box in points."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    canvas = FigureCanvasAgg(found.figure)
    canvas.draw()
    shown = [text for text in found.figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [(text, Text.get_window_extent(text, canvas.get_renderer())) for text in shown]


def test_there_is_a_figure_of_every_kind(drawn):
    assert {found.kind for found in drawn} == KINDS
    assert len({found.name for found in drawn}) == len(drawn)
    assert all(found.task == "glue/rte" and found.caption.endswith(".") for found in drawn)
    assert all(re.fullmatch(r"[\w.-]+", found.name) for found in drawn)
    assert all(re.search(r"\d", found.alt) and "glue/rte" in found.title for found in drawn)


def test_every_axis_is_labelled(drawn):
    for found in drawn:
        assert all(axes.get_xlabel() and axes.get_ylabel() for axes in panels(found)), found.name
        bars = [axes for axes in found.figure.axes if axes.get_label() == COLOURS]
        assert all(axes.get_xlabel() for axes in bars)
        assert bool(bars) == (found.kind in ("heat maps", "layers", "tokens"))


@pytest.mark.parametrize("labels", [["ft", "kd"], [f"a method with a long name, number {n}" for n in range(9)]])
def test_nothing_is_cut_off(tmp_path, labels):
    study = measured_study(tmp_path / "study", labels, ["glue/rte"], seeds=1)
    for found in all_figures(gather(read_entries([study]))):
        check_inside(found)


def test_nothing_is_cut_off_around_small_maps(tmp_path):
    write_record(make_run(tmp_path / "runs" / "kd", "kd"), a_record(depths=(2, 1), batches=2))
    for found in all_figures(gather(read_entries([tmp_path / "runs"]))):
        check_inside(found)


def check_inside(found):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    width, height = found.figure.get_size_inches()
    box = found.figure.get_tightbbox(FigureCanvasAgg(found.figure).get_renderer())
    inside = box.x0 >= -0.03 and box.x1 <= width + 0.03 and box.y0 >= -0.03 and box.y1 <= height + 0.03
    assert inside, (found.name, box.extents, (width, height))


@pytest.mark.parametrize("dpi", [72, 200])
def test_names_in_the_trade_off_do_not_cover_each_other(tmp_path, dpi):
    for number in range(20):
        run = make_run(tmp_path / "runs" / f"m{number}", f"m{number}", 1, 0.7 + 0.0005 * (number % 5))
        cost = {"milliseconds": 6.0, "teacher_milliseconds": 12.0, "session": SESSION}
        write_record(run, Record({}, {"cost": cost}, {}))
    found = only(tmp_path / "runs", "trade-off")
    found.figure.set_dpi(dpi)
    names = [box for text, box in texts(found) if re.fullmatch(r"m\d+|teacher", text.get_text())]
    assert len(names) == 21
    assert not any(one.shrunk(0.9, 0.9).overlaps(other.shrunk(0.9, 0.9)) for one, other in combinations(names, 2))


def test_the_page_has_figures_that_stand_alone(drawn, svgs):
    ids = []
    for found in drawn:
        root = ElementTree.fromstring(svgs[found.name])
        here = [element.get("id") for element in root.iter() if element.get("id")]
        ids += here
        assert root.tag.endswith("}svg") and root.get("role") == "img"
        assert root.get("viewBox") and not root.get("width") and not root.get("height")
        title, words = root[0], root[1]
        assert root.get("aria-labelledby").split() == [title.get("id"), words.get("id")]
        assert title.text == found.title and words.text == " ".join(found.alt.split())
        values = [value for element in root.iter() for value in element.attrib.values()]
        assert {name for value in values for name in re.findall(r"url\(#([^)]+)", value)} <= set(here)
        assert {element.get("href", "#")[1:] for element in root.iter() if element.tag.endswith("}use")} <= set(here)
        assert INK not in svgs[found.name] and "currentColor" in svgs[found.name]
        assert "DejaVu" not in svgs[found.name] and "<style" not in svgs[found.name]
        images = [element for element in root.iter() if element.tag.endswith("}image")]
        assert all(image.get("href").startswith("data:image/png;base64,") for image in images)
        assert bool(images) == (found.kind in ("heat maps", "layers", "tokens"))
    assert len(ids) == len(set(ids))


def test_a_label_is_shown_as_it_is_in_every_figure(drawn, svgs):
    shown = "".join(HOSTILE.split())
    for found in drawn:
        root = ElementTree.fromstring(svgs[found.name])
        written = ["".join("".join(element.itertext()).split()) for element in root.iter(f"{SVG}text")]
        assert any(shown in text for text in written), found.name
        assert not list(root.iter(f"{SVG}b"))


@pytest.mark.parametrize("kind", ["trade-off", "restoration", "layers"])
def test_files_are_the_same_every_time(drawn, drawn_again, tmp_path, kind):
    both = [next(found for found in figures if found.kind == kind) for figures in (drawn, drawn_again)]
    first, second = (save(found, tmp_path / str(number)) for number, found in enumerate(both, start=1))
    assert [file.suffix for file in first] == [".svg", ".png", ".pdf"]
    assert [file.name for file in first] == [file.name for file in second]
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]
    assert sorted(tmp_path.joinpath("1").iterdir()) == sorted(first)
    assert not re.search(rb"CreationDate|<dc:date>", first[0].read_bytes() + first[2].read_bytes())
    from PIL import Image

    with Image.open(first[1]) as image:
        assert image.size == pytest.approx(200 * both[0].figure.get_size_inches(), abs=2)


def test_colours_are_seen_on_white_and_on_black():
    def luminance(colour):
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    looks = [look(number) for number in range(50)]
    for colour in {found.colour for found in looks}:
        assert (
            1.05 / (luminance(colour) + 0.05) >= 3 and (luminance(colour) + 0.05) / (luminance("#121417") + 0.05) >= 3
        )
    assert len({(found.colour, found.marker) for found in looks}) == 50


def test_the_trade_off_shows_score_and_time(tmp_path):
    times = {"kd": 5.0, "fsd": 8.0}
    for method, time in times.items():
        for seed, score in ((1, 0.7), (2, 0.8)):
            run = make_run(tmp_path / "runs" / f"{method}-s{seed}", method, seed, score)
            cost = {"milliseconds": time, "teacher_milliseconds": 20.0, "session": SESSION}
            write_record(run, Record({}, {"cost": cost}, {}))
    make_run(tmp_path / "runs" / "ft", "ft", 1, 0.6)
    found = only(tmp_path / "runs", "trade-off")
    (axes,) = panels(found)
    from matplotlib.collections import PathCollection

    dots = [child for child in axes.get_children() if isinstance(child, PathCollection)]
    points = [tuple(dot.get_offsets()[0]) for dot in dots]
    assert sorted(points) == [(5.0, pytest.approx(75)), (8.0, pytest.approx(75)), (20.0, pytest.approx(75))]
    sizes = [dot.get_sizes()[0] for dot in dots]
    assert sizes[0] / sizes[2] == pytest.approx(66_955_010 / 109_483_778)
    assert "ms" in axes.get_xlabel() and axes.get_ylabel() == "accuracy (%)"
    assert "kd 75.00 at 5 ms" in found.alt and "teacher 75.00 at 20 ms" in found.alt
    assert "is not known: ft." in found.caption


def test_without_a_time_the_trade_off_shows_parameters(tmp_path):
    make_runs(tmp_path / "runs", "kd", [0.7, 0.72])
    make_run(tmp_path / "runs" / "broken", "ft", 1, float("nan"))
    (found,) = all_figures(gather(read_entries([tmp_path / "runs"])))
    assert found.kind == "trade-off" and "parameters" in panels(found)[0].get_xlabel()
    assert "kd 71.00 at 67.0 M parameters" in found.alt and "is not known: ft." in found.caption


def test_terms_of_one_name_share_a_panel(tmp_path):
    for method, terms in (("kd", {"task": 1.0, "kd": 2.0}), ("fsd", {"task": 0.5, "global": 3.0})):
        write_history(make_run(tmp_path / "runs" / method, method), terms)
    found = only(tmp_path / "runs", "curves")
    grid = panels(found)
    assert [axes.get_title("left") for axes in grid] == ["task", "global", "kd", "validation data"]
    assert [len(axes.get_lines()) for axes in grid] == [2, 1, 1, 2]
    line = grid[2].get_lines()[0]
    assert line.get_xdata().tolist() == list(range(5, 41, 5))
    assert line.get_ydata() == pytest.approx([2.0 / (1 + step / 10) for step in range(5, 41, 5)])
    assert grid[3].get_lines()[0].get_ydata() == pytest.approx([60.0, 70.0])
    low, high = grid[3].get_ylim()
    assert 50 < low < 60 and 70 < high < 80
    assert "kd: kd from 1.33 to 0.4" in found.alt and "ends at fsd 70.00, kd 70.00" in found.alt


def test_stages_have_lines_of_their_own(tmp_path):
    run = make_run(tmp_path / "runs" / "tinybert", "tinybert")
    for folder in ("stage-1", "stage-2"):
        (run / folder).mkdir()
        write_history(run / folder, {"hidden": 1.0})
    write_history(run, {"kd": 1.0})
    found = only(tmp_path / "runs", "curves")
    named = [text.get_text() for text in found.figure.legends[0].get_texts()]
    assert named == ["tinybert, stage 1", "tinybert, stage 2", "tinybert, stage 3"]
    assert [len(axes.get_lines()) for axes in panels(found)] == [2, 1, 3]


def test_a_long_log_is_averaged(tmp_path):
    run = make_run(tmp_path / "runs" / "kd", "kd")
    lines = [{"loss": 1.0, "term/kd": float(step), "step": step} for step in range(1000)]
    lines[7]["term/kd"] = float("nan")
    (run / "history.jsonl").write_text("\n".join(map(json.dumps, lines)))
    line = panels(only(tmp_path / "runs", "curves"))[0].get_lines()[0]
    assert len(line.get_xdata()) == 200
    assert line.get_ydata()[-1] == pytest.approx(997.5) and np.isfinite(line.get_ydata()).all()


def test_a_damaged_log_is_named(tmp_path):
    run = make_run(tmp_path / "runs" / "kd", "kd")
    (run / "history.jsonl").write_text('{"loss": 1')
    with pytest.raises(RunError, match=r"kd/history\.jsonl is damaged"):
        all_figures(gather(read_entries([tmp_path / "runs"])))


def test_restoration_has_a_bar_for_each_score(tmp_path):
    for seed in (1, 2):
        make_run(tmp_path / "runs" / f"kd-s{seed}", "kd", seed, answers=decided(seed, right=0.5 + 0.2 * seed))
    found = only(tmp_path / "runs", "restoration")
    from limbeck.analysis.decisions import decisions_of

    expected = [decisions_of(tmp_path / "runs" / f"kd-s{seed}").restoration.scores for seed in (1, 2)]
    widths = [bar.get_width() for bar in panels(found)[0].patches]
    assert widths == pytest.approx(
        [50 * (expected[0][name] + expected[1][name]) for name in ("precision", "recall", "f1")]
    )
    assert [text.get_text() for text in found.figure.legends[0].get_texts()] == ["precision", "recall", "f1"]


def test_heat_maps_share_a_scale(tmp_path):
    maps = {"teacher": np.eye(3), "before": np.full((3, 3), 0.25), "after": np.diag([0.5, 0.75, 1.0])}
    for method in ("kd", "fsd"):
        write_record(
            make_run(tmp_path / "runs" / method, method),
            Record({}, {}, {f"heat_map.{name}": values for name, values in maps.items()}),
        )
    found = only(tmp_path / "runs", "heat maps")
    titles = [axes.get_title("left") for axes in panels(found)]
    assert [title.partition(" – ")[2] for title in titles] == ["teacher", "student before", "fsd", "kd"]  # noqa: RUF001
    shown = [axes.get_images()[0] for axes in panels(found)]
    assert {image.get_clim() for image in shown} == {(0.0, 1.0)}
    assert all(
        np.array_equal(image.get_array(), maps[name]) for image, name in zip(shown, (*maps, "after"), strict=True)
    )
    below = [axes.get_xlabel().splitlines()[-1] for axes in panels(found)]
    assert below == [f"mean of the diagonal {mean}" for mean in ("1.00", "0.25", "0.75", "0.75")]


def test_students_that_began_differently_are_shown_before(tmp_path):
    for method, value in (("kd", 0.1), ("fsd", 0.3)):
        arrays = {"heat_map.before": np.full((2, 2), value), "heat_map.after": np.eye(2)}
        write_record(make_run(tmp_path / "runs" / method, method), Record({}, {}, arrays))
    titles = [axes.get_title("left") for axes in panels(only(tmp_path / "runs", "heat maps"))]
    assert [title.split(" ", 2)[2] for title in titles] == ["fsd before", "kd before", "fsd", "kd"]


@pytest.mark.parametrize(("depths", "numbers"), [((12, 6), True), ((13, 6), False)])
def test_layers_have_numbers_where_there_is_room(tmp_path, depths, numbers):
    write_record(make_run(tmp_path / "runs" / "kd", "kd"), a_record(depths=depths))
    beside, own = figures(tmp_path / "runs", "layers")
    before, after = panels(beside)
    assert before.get_images()[0].get_array().shape == (depths[0] + 1, 7)
    assert "teacher" in after.get_ylabel() and "student" in after.get_xlabel()
    record = a_record(depths=depths)
    assert np.array_equal(after.get_images()[0].get_array(), record.arrays["layers.after"])
    assert np.array_equal(panels(own)[0].get_images()[0].get_array(), record.arrays["layers.students"])
    assert len(after.texts) == (13 * 7 if numbers else 0)
    if numbers:
        first = record.arrays["layers.after"][0, 0]
        assert float(after.texts[0].get_text()) == pytest.approx(first, abs=0.005)
        assert [tick.get_text() for tick in after.get_yticklabels()] == [str(layer) for layer in range(13)]


def test_many_maps_are_several_figures(tmp_path):
    for number in range(13):
        record = a_record(number)
        kept = {name: values for name, values in record.arrays.items() if not name.startswith("layers.students")}
        write_record(make_run(tmp_path / "runs" / f"m{number}", f"m{number}"), Record({}, record.values, kept))
    all_of_them = all_figures(gather(read_entries([tmp_path / "runs"])))
    found = {kind: [one for one in all_of_them if one.kind == kind] for kind in ("heat maps", "layers", "tokens")}
    assert [len(panels(one)) for one in found["heat maps"]] == [12, 3]
    assert [one.name for one in found["heat maps"]] == ["heat-maps-glue-rte", "heat-maps-glue-rte-2"]
    assert [len(panels(one)) for one in found["layers"]] == [8, 6]
    assert [len(panels(one)) for one in found["tokens"]] == [24, 24, 16]  # the teacher is above in each
    assert all(panels(one)[0].get_title("left") == "teacher, no norm" for one in found["tokens"])
    limits = {panels(one)[place].get_images()[0].get_clim() for one in found["tokens"] for place in (0, 4, 12)}
    assert len(limits) == 1


def test_relation_difference_over_steps(tmp_path):
    rows = [{"step": step, **{name: place + step / 10 for place, name in enumerate(RELATIONS)}} for step in (0, 10)]
    write_record(make_run(tmp_path / "runs" / "kd", "kd"), Record({}, {"relation_difference": rows}, {}))
    found = only(tmp_path / "runs", "relation difference")
    lines = [axes.get_lines()[0] for axes in panels(found)]
    assert [line.get_xdata().tolist() for line in lines] == [[0, 10]] * 4
    assert [line.get_ydata().tolist() for line in lines] == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert "inter, cosine: kd from 1 to 2" in found.alt


def test_intra_class_similarity(tmp_path):
    for seed, after in ((1, 0.5), (2, 0.7)):
        values = {"intra_class_similarity": {"teacher": 0.9, "before": 0.2, "after": after}}
        write_record(make_run(tmp_path / "runs" / f"kd-s{seed}", "kd", seed), Record({}, values, {}))
    found = only(tmp_path / "runs", "intra-class similarity")
    assert [bar.get_width() for bar in panels(found)[0].patches] == pytest.approx([0.9, 0.2, 0.6])
    assert found.alt.endswith("teacher 0.90, student before 0.20, kd 0.60.")


def test_what_is_drawn_over_all_tasks(tmp_path):
    """Points of the diagonals (Jung et al. 2023, figure 5) and similar classes (Saadi et al. 2023, figure 2)."""
    measured = {"glue/rte": {"ft": 0.7, "ics": 0.9}, "glue/mrpc": {"ft": 0.5, "ics": 0.6}, "glue/cola": {"ft": 0.2}}
    for task, methods in measured.items():
        for method, after in methods.items():
            one = {"teacher": 1.0, "before": 0.1, "after": after}
            values = {"cka_diagonal": one, "intra_class_similarity": {"after": after}}
            run = make_run(tmp_path / "runs" / f"{method}-{task[5:]}", method, task=task)
            write_record(run, Record({}, values, {}))
    (points,) = figures(tmp_path / "runs", "diagonals")
    means = [line.get_xdata() for line in panels(points)[0].get_lines() if line.get_marker() != "|"]
    assert np.ravel(means) == pytest.approx([1.0, 0.1, (0.7 + 0.5 + 0.2) / 3])  # of ics, one task is missing
    assert points.name == "diagonals-all-tasks" and "student before 0.100, ft 0.467." in points.alt
    bars = next(found for found in figures(tmp_path / "runs", "intra-class similarity") if "all tasks" in found.title)
    assert sorted(bar.get_width() for bar in panels(bars)[0].patches) == pytest.approx(
        sorted([0.7, 0.5, 0.2, 1.4 / 3, 0.9, 0.6])
    )
    for found in (points, bars):
        check_inside(found)


def test_calibration_of_all_seeds_together(tmp_path):
    def answers(right):
        logits = [[0.0, np.log(3.0)]] * 4  # 0.75 sure of the second class
        return {"id": range(4), "label": [1] * right + [0] * (4 - right), "prediction": [1] * 4, "logits": logits}

    labels = {1: 4, 2: 2}
    for seed, right in labels.items():
        make_run(tmp_path / f"runs-{seed}" / "kd", "kd", seed, answers=answers(right), examples=4)
    for seed, right in labels.items():
        found = only(tmp_path / f"runs-{seed}", "calibration")
        line = panels(found)[0].get_lines()[1]
        assert line.get_xdata() == pytest.approx([0.75]) and line.get_ydata() == pytest.approx([right / 4])
        assert line.get_label() == "kd, ECE 0.250"
    from limbeck.analysis.decisions import decisions_of
    from limbeck.report.lines import _pooled

    both = _pooled([None, *(decisions_of(tmp_path / f"runs-{seed}" / "kd").calibration for seed in labels)])
    assert both.counts.sum() == 8 and both.accuracy.sum() == pytest.approx(0.75) and both.error == pytest.approx(0.25)


def test_sentences_that_others_were_not_shown_are_left_out(tmp_path):
    write_record(make_run(tmp_path / "runs" / "a", "a"), a_record())
    other = a_record()
    other.values["sentences"] = [{"text": "another", "tokens": ["another"]}]
    write_record(make_run(tmp_path / "runs" / "b", "b"), other)
    found = only(tmp_path / "runs", "tokens")
    titles = [axes.get_title("left") for axes in panels(found)]
    assert titles[::4] == ["teacher, no norm", "a, no norm"] and len(titles) == 8
    assert [tick.get_text() for tick in panels(found)[0].get_xticklabels()] == [
        "[CLS]",
        "a",
        "small",
        "sent",
        "##ence",
        "[SEP]",
    ]


def test_signs_that_the_font_lacks_do_not_warn(tmp_path):
    record = a_record()
    record.values["sentences"] = [{"text": "漢字", "tokens": ["漢", "字", "[SEP]", "\x00", "", "$"]}]
    write_record(make_run(tmp_path / "runs" / "a", "a"), record)
    found = only(tmp_path / "runs", "tokens")
    assert "漢" in inline_svg(found)
    save(found, tmp_path / "files")


def test_nothing_is_drawn_of_nothing(tmp_path):
    make_run(tmp_path / "runs" / "kd", "kd", parameters=None, teacher=None)
    assert all_figures(gather(read_entries([tmp_path / "runs"]))) == []


def test_matplotlib_is_asked_for(tmp_path, monkeypatch):
    make_run(tmp_path / "runs" / "kd", "kd")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'limbeck\[report\]'"):
        all_figures(gather(read_entries([tmp_path / "runs"])))
