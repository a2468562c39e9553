"""Check that an analysis is kept whole or not at all, with one message where it is damaged."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from limbeck.analysis import record as record_module
from limbeck.analysis.record import Record, read_record, write_record
from limbeck.errors import RunError

ARRAYS = {
    "heat_map.before": np.zeros((50, 50), dtype=np.float32),
    "heat_map.after": np.random.default_rng(0).normal(size=(20, 20)).astype(np.float32),
    "layers.students": np.eye(3),
    "tokens.0.student.l2": np.ones((5, 5), dtype=np.float32),
}
VALUES = {"layers": {"teacher": 4, "student": 2}, "sentences": [{"text": "naïve ü", "tokens": ["[CLS]"]}]}
SETTINGS = {"examples": 40, "pool": "mean", "asked": {"sentences": []}}


@pytest.fixture()
def run(tmp_path):
    write_record(tmp_path, Record(SETTINGS, VALUES, ARRAYS))
    return tmp_path


def same(found, settings=SETTINGS, values=VALUES, arrays=ARRAYS):
    assert (found.settings, found.values) == (settings, values) and found.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found.arrays[name].dtype == array.dtype and np.array_equal(found.arrays[name], array), name


def test_round_trip(run):
    same(read_record(run))
    assert sorted(file.name for file in (run / "analysis").iterdir()) == ["analysis.json", "arrays.npz"]


def test_a_second_record_replaces_the_first(run):
    write_record(run, Record({"examples": 8}, {}, {"layers.students": np.eye(2)}))
    same(read_record(run), {"examples": 8}, {}, {"layers.students": np.eye(2)})


def test_nothing_was_measured(tmp_path):
    assert read_record(tmp_path) is None
    (tmp_path / "analysis").mkdir()
    assert read_record(tmp_path) is None


@pytest.mark.parametrize("first", [True, False])
def test_killed_between_the_two_files(tmp_path, monkeypatch, first):
    """Expect that new arrays never stand beside the values of an older record."""
    if not first:
        write_record(tmp_path, Record(SETTINGS, VALUES, ARRAYS))

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(record_module, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        write_record(tmp_path, Record({"examples": 8}, {}, {"layers.students": np.eye(2)}))
    assert (tmp_path / "analysis" / "arrays.npz").is_file() and read_record(tmp_path) is None


def test_an_older_record_survives_a_full_disk(run, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="No space left"):
        write_record(run, Record({"examples": 8}, {}, {}))
    same(read_record(run))


def single_array(_):
    buffer = io.BytesIO()
    np.save(buffer, np.eye(2))
    return buffer.getvalue()


def pickled(_):
    buffer = io.BytesIO()
    np.savez(buffer, **{"heat_map.after": np.array([{}], dtype=object)})
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("arrays.npz", lambda data: None),
        ("arrays.npz", lambda data: b""),
        ("arrays.npz", lambda data: b"not an archive"),
        ("arrays.npz", lambda data: data[: len(data) // 2]),
        ("arrays.npz", single_array),
        ("arrays.npz", pickled),
        ("analysis.json", lambda data: b""),
        ("analysis.json", lambda data: data[: len(data) // 2]),
        ("analysis.json", lambda data: b"[]"),
        ("analysis.json", lambda data: b"7"),
        ("analysis.json", lambda data: b"{}"),
        ("analysis.json", lambda data: b'{"settings": []}'),
        ("analysis.json", lambda data: b"\xff\xfe"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_damage_is_one_message(run, name, damage):
    file = run / "analysis" / name
    content = damage(file.read_bytes())
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RunError) as caught:
        read_record(run)
    message = str(caught.value)
    assert f"{run / 'analysis'} is damaged (" in message and f"limbeck analyze --force {run}" in message
    assert "\n" not in message and "damaged ()" not in message


def test_wrong_bytes_are_never_read_as_other_numbers(run):
    """Damage the values, how they are compressed, or the archive's own tables; a file's date does not matter."""
    file, seen = run / "analysis" / "arrays.npz", 0
    data = file.read_bytes()
    for place in range(0, len(data), 16):
        file.write_bytes(data[:place] + bytes(255 - byte for byte in data[place : place + 8]) + data[place + 8 :])
        try:
            same(read_record(run))
        except RunError as error:
            assert "is damaged (" in str(error)
            seen += 1
    assert seen > 0.8 * len(data) / 16


def test_values_that_are_no_numbers_can_be_kept(tmp_path):
    write_record(tmp_path, Record({}, {"cka_diagonal": {"after": float("nan"), "teacher": None}}, {}))
    found = read_record(tmp_path)
    assert np.isnan(found.values["cka_diagonal"]["after"]) and found.values["cka_diagonal"]["teacher"] is None
    assert json.loads((tmp_path / "analysis" / "analysis.json").read_text())["settings"] == {}
