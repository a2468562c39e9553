"""Test the cache of a teacher's features: what is read is what the teacher computes, and nothing wrong is ever read."""

from __future__ import annotations

import copy
import dataclasses
import errno
import json
import logging
import re
import shutil
import struct
from collections import Counter
from pathlib import Path

import datasets
import pytest
import torch
from helpers.tiny_models import VOCAB, tiny_model
from helpers.tiny_tables import WORDS
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from limbeck.distillation import feature_cache as cache_module
from limbeck.distillation.feature_cache import CachedTeacher, FeatureCache
from limbeck.distillation.fingerprint import fingerprint
from limbeck.distillation.teachers import LiveTeacher
from limbeck.errors import CacheError, RunError
from limbeck.models.features import Wanted
from limbeck.models.vocabulary import make_wordpiece
from limbeck.tasks.encode import Collator

FAMILIES = ["bert", "roberta", "gpt2", "modernbert"]
DEPTH = 3
EVERYTHING = Wanted(
    logits=True, hidden=range(DEPTH + 1), queries=[1, 3], keys=[1, 2], values=[2, 3], cls=[0, 3], last=[2], mean=[1]
)
WITHOUT_LOGITS = dataclasses.replace(EVERYTHING, logits=False)
# What a model computes whichever side is padded: BERT counts positions from the padding on, and the classifiers of
# encoders read the first place of the row.
SAME_ON_THE_LEFT = {"roberta": WITHOUT_LOGITS, "modernbert": WITHOUT_LOGITS, "gpt2": EVERYTHING}
KINDS = ("hidden", "queries", "keys", "values", "cls", "last", "mean")
LENGTHS = (7, 4, 12, 1, 9, 9, 2, 15, 5, 3, 11)
IDS = [40, 3, 2**40, 7, 11, 1000, 0, 12, 5, 6, 999]  # neither sorted nor row numbers


def data(lengths=LENGTHS, ids=None, seed=0):
    """Make encoded rows of random tokens, as ``encode`` makes them."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(5, VOCAB, (length,), generator=generator).tolist() for length in lengths]
    columns = {
        "id": list(ids or IDS[: len(lengths)]),
        "input_ids": rows,
        "attention_mask": [[1] * length for length in lengths],
        "token_type_ids": [[int(2 * i >= length) for i in range(length)] for length in lengths],
        "labels": [i % 2 for i in range(len(lengths))],
    }
    return datasets.Dataset.from_dict(columns)


def padding(tokenizer, side):
    other = copy.deepcopy(tokenizer)
    other.padding_side = side
    return Collator(other)


class Counted(LiveTeacher):
    """Run a live teacher, and note what it was run for."""

    def __init__(self, model, fails_after=None):
        super().__init__(model)
        self.calls, self.fails_after = [], fails_after

    def __call__(self, batch, wanted):
        if self.fails_after is not None and len(self.calls) == self.fails_after:
            raise RuntimeError("the teacher failed")
        self.calls.append((batch["ids"].tolist(), wanted))
        return super().__call__(batch, wanted)

    @property
    def ids(self):
        return [i for ids, _ in self.calls for i in ids]

    @property
    def computed(self):
        """Count how often each tensor of each example was computed."""
        return Counter((name, i) for ids, wanted in self.calls for name in names(wanted) for i in ids)


def names(wanted):
    layered = {f"{kind}.{layer}" for kind in KINDS for layer in getattr(wanted, kind)}
    return layered | ({"logits"} if wanted.logits else set())


def tensors(features):
    """Name to tensor, of all that was captured."""
    layered = {f"{kind}.{layer}": value for kind in KINDS for layer, value in getattr(features, kind).items()}
    return layered | ({"logits": features.logits} if features.logits is not None else {})


def assert_reads(teacher, model, batch, wanted=EVERYTHING, rtol=0.0, atol=1e-6):
    """Assert that what ``teacher`` reads for the batch is what the model computes for it, and 0 at padding."""
    with torch.no_grad():
        found, expected = teacher(batch, wanted), LiveTeacher(model)(batch, wanted)
    mask = batch["attention_mask"].bool()
    assert torch.equal(found.mask, mask) and found.mask.dtype == torch.bool
    ours, theirs = tensors(found), tensors(expected)
    assert ours.keys() == theirs.keys() == names(wanted)
    for name, tensor in ours.items():
        assert tensor.dtype == torch.float32 and tensor.shape == theirs[name].shape, name
        assert not tensor.requires_grad
        if tensor.dim() == 2:  # one row for each example
            torch.testing.assert_close(tensor, theirs[name], rtol=rtol, atol=atol, msg=name)
        else:
            torch.testing.assert_close(tensor[mask], theirs[name][mask], rtol=rtol, atol=atol, msg=name)
            assert torch.equal(tensor[~mask], torch.zeros_like(tensor[~mask])), name


def batch_of(encoded, collate, rows):
    return collate([encoded[row] for row in rows])


class Setting:
    """Hold a model, data and a folder, and open the cache between them."""

    def __init__(self, folder, model, tokenizer, encoded, max_length=16, dtype="float32"):
        self.folder, self.model, self.tokenizer, self.encoded = folder, model.eval(), tokenizer, encoded
        self.max_length, self.dtype, self.collate = max_length, dtype, Collator(tokenizer)

    def print(self):
        return fingerprint(self.model, self.tokenizer, self.encoded, self.max_length)

    def open(self):
        return FeatureCache(self.folder, self.encoded, self.print(), dtype=self.dtype)

    def fill(self, wanted=EVERYTHING, teacher=None):
        """Open the cache anew, as another run does, and fill it; return it and the teacher, which notes its work."""
        cache, teacher = self.open(), teacher or Counted(self.model)
        cache.fill(teacher, self.collate, 3, wanted)
        return cache, teacher

    def assert_right(self, cache, wanted=EVERYTHING):
        batch = batch_of(self.encoded, self.collate, range(len(self.encoded)))
        assert_reads(CachedTeacher(cache), self.model, batch, wanted)

    def changed(self, **changes):
        other = copy.copy(self)
        for name, value in changes.items():
            setattr(other, name, value)
        return other


def contents(folder):
    """Read every file with its bytes and time, except for a lock, which need not be empty or old."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.iterdir()
        if path.is_file() and "lock" not in path.name
    }


def shards(folder, name="*"):
    return sorted(folder.glob(f"{name}-*.safetensors"))


def leftovers(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".") and "lock" not in path.name]


@pytest.fixture()
def small_shards(monkeypatch):
    monkeypatch.setattr(cache_module, "TOKENS_IN_A_SHARD", 20)


@pytest.fixture()
def setting(tmp_path, tokenizer, small_shards):
    return Setting(tmp_path / "cache", tiny_model("bert"), tokenizer, data())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_feature_reads_as_the_model_computes_it(family, tmp_path, tokenizer, small_shards):
    at = Setting(tmp_path / "cache", tiny_model(family), tokenizer, data())
    cache, teacher = at.fill()
    assert len(shards(at.folder, "logits")) >= 4
    found = {path.name.rpartition("-")[0] for path in shards(at.folder)}
    assert found == names(EVERYTHING)
    assert Counter(teacher.ids) == Counter(IDS) and max(teacher.computed.values()) == 1
    read = CachedTeacher(cache)
    generator = torch.Generator().manual_seed(1)
    rows = [range(len(LENGTHS)), [7], [3], [10, 0, 5, 3], *torch.randperm(11, generator=generator).split(4)]
    for some in rows:
        assert_reads(read, at.model, batch_of(at.encoded, at.collate, map(int, some)))
    wider = Collator(tokenizer, pad_to=20)
    assert_reads(read, at.model, batch_of(at.encoded, wider, [2, 6]))
    again, teacher = at.fill()  # and the same from the files alone
    assert not teacher.calls
    at.assert_right(again)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_on_the_left(family, tmp_path, tokenizer, small_shards):
    at = Setting(tmp_path / "cache", tiny_model(family), tokenizer, data())
    cache, _ = at.fill()
    read, left = CachedTeacher(cache), padding(tokenizer, "left")
    for rows in ([0, 1, 2, 3], [7, 6], [4]):
        batch = batch_of(at.encoded, left, rows)
        if family in SAME_ON_THE_LEFT:
            assert_reads(read, at.model, batch, SAME_ON_THE_LEFT[family])
        found, expected = (tensors(read(batch_of(at.encoded, side, rows), EVERYTHING)) for side in (left, at.collate))
        mask = batch["attention_mask"].bool()
        for name, tensor in found.items():
            if tensor.dim() == 2:
                assert torch.equal(tensor, expected[name])
            else:
                assert torch.equal(tensor[mask], expected[name][mask.flip(1)]), name  # row by row, so in order
                assert not tensor[~mask].any()


@pytest.mark.parametrize("family", SAME_ON_THE_LEFT)
def test_filled_from_batches_padded_on_the_left(family, tmp_path, tokenizer, small_shards):
    at, wanted = Setting(tmp_path / "cache", tiny_model(family), tokenizer, data()), SAME_ON_THE_LEFT[family]
    at.collate = padding(tokenizer, "left")
    cache, _ = at.fill(wanted)
    at.assert_right(cache, wanted)
    assert_reads(CachedTeacher(cache), at.model, batch_of(at.encoded, Collator(tokenizer), [0, 1, 2]), wanted)


@pytest.mark.parametrize(("dtype", "code", "error"), [("float16", "F16", 2**-10), ("bfloat16", "BF16", 2**-7)])
def test_half_precision(dtype, code, error, setting):
    setting.dtype = dtype
    cache, _ = setting.fill()
    batch = batch_of(setting.encoded, setting.collate, range(len(LENGTHS)))
    assert_reads(CachedTeacher(cache), setting.model, batch, rtol=error, atol=1e-6)
    for file in shards(setting.folder):
        with safe_open(file, "pt") as opened:
            [name] = opened.keys()
            assert opened.get_slice(name).get_dtype() == code


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_reading_is_the_same_while_a_step_computes_in_bfloat16(dtype, setting):
    """Read inside autocast, which on a CPU refuses to put float16 tensors together."""
    setting.dtype = dtype
    cache, _ = setting.fill()
    batch = batch_of(setting.encoded, setting.collate, range(4))
    plain = CachedTeacher(cache)(batch, EVERYTHING)
    with torch.autocast("cpu", torch.bfloat16):
        inside = CachedTeacher(cache)(batch, EVERYTHING)
    for name in EVERYTHING.names():
        assert inside[name].dtype == torch.float32 and torch.equal(inside[name], plain[name])


def test_float16_that_overflows_is_refused(setting):
    with torch.no_grad():
        setting.model.classifier.weight.mul_(1e7)
    with pytest.raises(CacheError, match=r"bfloat16|float32"):
        setting.changed(dtype="float16").fill()
    for file in shards(setting.folder):
        assert all(tensor.isfinite().all() for tensor in load_file(file).values())
    assert not leftovers(setting.folder)
    wide = setting.changed(dtype="bfloat16", folder=setting.folder.with_name("wide"))
    cache, _ = wide.fill()
    batch = batch_of(wide.encoded, wide.collate, [0, 1])
    assert_reads(CachedTeacher(cache), wide.model, batch, rtol=2**-7, atol=1e-6)


def test_one_tensor_in_a_file_without_padding(setting):
    setting.fill()
    total = sum(LENGTHS)
    for name, rows, width in (("hidden.0", total, 32), ("queries.3", total, 32), ("logits", 11, 2), ("mean.1", 11, 32)):
        tensors = [tensor for file in shards(setting.folder, name) for tensor in load_file(file).values()]
        assert len(tensors) == len(shards(setting.folder, name))
        assert sum(len(tensor) for tensor in tensors) == rows and {tensor.shape[1] for tensor in tensors} == {width}
    for file in shards(setting.folder):
        with safe_open(file, "pt") as opened:
            assert {"fingerprint", "sha256"} <= opened.metadata().keys()


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float16", 2)])
def test_the_estimate_is_the_size(dtype, size, setting):
    cache = setting.changed(dtype=dtype).open()
    total = sum(LENGTHS)
    for wanted, numbers in (
        (Wanted(logits=True), 2 * len(LENGTHS)),
        (Wanted(hidden=[0, 3]), 2 * 32 * total),
        (Wanted(cls=[2], mean=[0]), 2 * 32 * len(LENGTHS)),
        (EVERYTHING, 10 * 32 * total + (4 * 32 + 2) * len(LENGTHS)),
    ):
        assert cache.estimate(setting.model, wanted) == pytest.approx(numbers * size, rel=0.02)
    cache.fill(LiveTeacher(setting.model), setting.collate, 3, EVERYTHING)
    assert cache.estimate(setting.model, EVERYTHING) == pytest.approx(
        numbers * size, rel=0.02
    )  # of all, not of the rest


def test_what_is_read_belongs_to_the_reader(setting):
    """Change features in place, without a trace in the cache, also where no padding forces a copy."""
    cache, _ = setting.fill()
    before = contents(setting.folder)
    read = CachedTeacher(cache)
    for rows in ([7], [4, 5], range(len(LENGTHS))):
        batch = batch_of(setting.encoded, setting.collate, rows)
        for tensor in tensors(read(batch, EVERYTHING)).values():
            tensor.fill_(1e9)
        assert_reads(read, setting.model, batch)
    assert contents(setting.folder) == before


def test_features_can_be_saved_for_a_backward_pass(setting):
    cache, _ = setting.fill(Wanted(hidden=[2]))
    batch = batch_of(setting.encoded, setting.collate, [0, 1])
    weight = torch.ones(32, requires_grad=True)
    (CachedTeacher(cache)(batch, Wanted(hidden=[2])).hidden[2] * weight).square().sum().backward()
    assert weight.grad is not None and weight.grad.abs().sum() > 0


def test_only_what_is_asked_for_is_read(setting):
    cache, _ = setting.fill()
    batch = batch_of(setting.encoded, setting.collate, [0, 4])
    assert_reads(CachedTeacher(cache), setting.model, batch, Wanted(hidden=[3], keys=[1]))
    assert_reads(CachedTeacher(cache), setting.model, batch, Wanted(logits=True))


def test_what_is_not_in_the_cache_is_a_clear_error(setting):
    cache, _ = setting.fill(Wanted(logits=True, hidden=[1]))
    read = CachedTeacher(cache)
    batch = batch_of(setting.encoded, setting.collate, [0, 1])
    with pytest.raises(CacheError, match=r"hidden\.2|hidden 2|layer 2"):
        read(batch, Wanted(hidden=[2]))
    with pytest.raises(CacheError, match="4321"):
        read(batch | {"ids": torch.tensor([40, 4321])}, Wanted(hidden=[1]))
    longer = batch | {"attention_mask": torch.ones_like(batch["attention_mask"])}  # 7 and 4 tokens, now 7 and 7
    for wanted in (Wanted(hidden=[1]), Wanted(logits=True)):
        with pytest.raises(CacheError, match="3"):
            read(longer, wanted)
        with pytest.raises(CacheError):
            read(batch | {"ids": batch["ids"].flip(0)}, wanted)


def test_after_a_failure_nothing_half_filled_is_read(setting):
    cache = setting.open()
    with pytest.raises(RuntimeError):
        cache.fill(Counted(setting.model, fails_after=4), setting.collate, 3, EVERYTHING)
    for row in range(len(LENGTHS)):
        batch = batch_of(setting.encoded, setting.collate, [row])
        try:
            assert_reads(CachedTeacher(cache), setting.model, batch)
        except CacheError:
            continue


def test_two_examples_with_one_id_are_refused(setting):
    """Refuse what cannot be told apart, rather than mistake one for the other."""
    at = setting.changed(encoded=data((5, 5, 5), ids=[1, 2, 1]))
    with pytest.raises(CacheError, match=r"\b1\b"):
        at.fill()


def test_a_batch_without_ids_is_refused(setting):
    cache, _ = setting.fill()
    with pytest.raises(CacheError, match="ids"):
        cache.read({"attention_mask": torch.ones(1, 5, dtype=torch.long)}, Wanted(logits=True))


def test_another_need_adds_only_what_is_missing(setting):
    _, first = setting.fill(Wanted(logits=True, hidden=[1]))
    before = contents(setting.folder)
    cache, second = setting.fill(Wanted(logits=True, hidden=[1, 3], values=[2]))
    assert {name for name, _ in second.computed} == {"hidden.3", "values.2"}
    assert Counter(second.ids) == Counter(IDS)
    after = contents(setting.folder)
    for name, file in before.items():
        if name.endswith(".safetensors"):
            assert after[name] == file, name
    setting.assert_right(cache, Wanted(logits=True, hidden=[1, 3], values=[2]))
    cache, third = setting.fill(Wanted(hidden=[1]))  # less than is there
    assert not third.calls
    setting.assert_right(cache, Wanted(logits=True, hidden=[3]))  # and the rest is still there
    assert first.calls


def test_a_missing_file_is_computed_for_its_shard_alone(setting, caplog):
    setting.fill()
    gone = shards(setting.folder, "hidden.2")[1]
    [rows] = [len(tensor) for tensor in load_file(gone).values()]
    gone.unlink()
    before = contents(setting.folder)
    caplog.clear()
    cache, teacher = setting.fill()
    assert {name for name, _ in teacher.computed} == {"hidden.2"} and max(teacher.computed.values()) == 1
    assert sum(LENGTHS[IDS.index(i)] for i in teacher.ids) == rows
    after = contents(setting.folder)
    assert after.keys() - before.keys() == {gone.name}
    assert all(after[name] == file for name, file in before.items() if name != "manifest.json")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]  # nothing was wrong
    setting.assert_right(cache)


def test_stopped_by_an_error_and_continued(setting):
    whole = setting.changed(folder=setting.folder.with_name("whole"))
    whole.fill()
    for stop in (0, 1, 3):
        with pytest.raises(RuntimeError, match="the teacher failed"):
            setting.fill(teacher=Counted(setting.model, fails_after=stop))
        assert not leftovers(setting.folder)
    there = contents(setting.folder)
    cache, teacher = setting.fill()
    for name, file in there.items():
        if name.endswith(".safetensors"):
            assert contents(setting.folder)[name] == file
    assert 0 < len(set(teacher.ids)) < len(IDS)
    ours, theirs = ({file.name: load_file(file) for file in shards(at.folder)} for at in (setting, whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[file][name], theirs[file][name]) for file in ours for name in ours[file])
    setting.assert_right(cache)


def test_shards_of_another_size_are_refused_or_read(setting, monkeypatch):
    setting.fill(Wanted(hidden=[1]))
    monkeypatch.setattr(cache_module, "TOKENS_IN_A_SHARD", 1_000_000)
    before = contents(setting.folder)
    try:
        cache, _ = setting.fill(Wanted(logits=True, hidden=[1]))
    except CacheError:
        assert contents(setting.folder) == before
    else:
        setting.assert_right(cache, Wanted(logits=True, hidden=[1]))


def test_a_text_longer_than_a_shard(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(cache_module, "TOKENS_IN_A_SHARD", 5)
    at = Setting(tmp_path / "cache", tiny_model("bert"), tokenizer, data())
    at.assert_right(at.fill()[0])


# Damage. All texts are of one length, so that every shard of a tensor has the same shape and nothing but what is
# written inside tells them apart.


@pytest.fixture(scope="module")
def built(tmp_path_factory, tokenizer):
    """Build a complete cache, and that of another teacher for the same data."""
    folder = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_module, "TOKENS_IN_A_SHARD", 20)
        encoded = data((5,) * 11)
        settings = []
        for seed in (0, 1):
            tiny_model("bert", seed=seed).save_pretrained(folder / f"teacher-{seed}")
            model = AutoModelForSequenceClassification.from_pretrained(folder / f"teacher-{seed}")
            settings.append(Setting(folder / f"cache-{seed}", model, tokenizer, encoded))
            settings[-1].fill()
    return settings


@pytest.fixture()
def copied(built, tmp_path, small_shards):
    shutil.copytree(built[0].folder, tmp_path / "cache")
    return built[0].changed(folder=tmp_path / "cache")


def flip(file, position):
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


def data_starts(file):
    return 8 + struct.unpack("<Q", file.read_bytes()[:8])[0]


def exchange(one, other):
    first, second = one.read_bytes(), other.read_bytes()
    assert first != second
    one.write_bytes(second)
    other.write_bytes(first)


def in_metadata(file, key):
    """Find the place of the value of ``key`` in the file's header."""
    content = file.read_bytes()
    return content.index(b'"', content.index(f'"{key}"'.encode()) + len(key) + 2) + 1


DAMAGE = {
    "first byte of the data": lambda file, _: flip(file, data_starts(file)),
    "last byte": lambda file, _: flip(file, -1),
    "a byte in the middle": lambda file, _: flip(file, (data_starts(file) + file.stat().st_size) // 2),
    "length of the header": lambda file, _: flip(file, 0),
    "huge length of the header": lambda file, _: flip(file, 7),
    "bracket of the header": lambda file, _: flip(file, 8),
    "checksum in the header": lambda file, _: flip(file, in_metadata(file, "sha256")),
    "fingerprint in the header": lambda file, _: flip(file, in_metadata(file, "fingerprint")),
    "truncated by a byte": lambda file, _: file.write_bytes(file.read_bytes()[:-1]),
    "truncated in the middle": lambda file, _: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "truncated in the header": lambda file, _: file.write_bytes(file.read_bytes()[:20]),
    "a byte too many": lambda file, _: file.write_bytes(file.read_bytes() + b"\0"),
    "empty": lambda file, _: file.write_bytes(b""),
    "zeros": lambda file, _: file.write_bytes(bytes(file.stat().st_size)),
    "another kind of file": lambda file, _: file.write_text("not a tensor"),
    "another shard's": lambda file, _: shutil.copy(file.with_name("hidden.2-00002.safetensors"), file),
    "another layer's": lambda file, _: shutil.copy(file.with_name("hidden.1-00001.safetensors"), file),
    "another kind's": lambda file, _: shutil.copy(file.with_name("values.2-00001.safetensors"), file),
    "another teacher's": lambda file, theirs: shutil.copy(theirs.folder / file.name, file),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_found_and_written_again(damage, built, copied, caplog):
    file = copied.folder / "hidden.2-00001.safetensors"
    before = contents(copied.folder)
    DAMAGE[damage](file, built[1])
    assert file.read_bytes() != before[file.name][0]
    caplog.clear()
    cache, teacher = copied.fill()
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING and r.name == "limbeck"]
    assert len(warnings) == 1 and file.name in warnings[0].getMessage()
    assert {name for name, _ in teacher.computed} == {"hidden.2"} and len(teacher.ids) == 4  # of its shard alone
    copied.assert_right(cache)
    assert not leftovers(copied.folder)
    after = contents(copied.folder)
    for name, known in before.items():
        if name not in (file.name, "manifest.json"):
            assert after[name] == known, name
    assert after.keys() == before.keys()
    caplog.clear()
    assert not copied.fill()[1].calls and not caplog.records  # once


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("hidden.2-00000", "hidden.2-00001"),
        ("logits-00000", "logits-00001"),
        ("hidden.1-00000", "queries.3-00000"),
        ("hidden.1-00000", "hidden.3-00000"),
    ],
)
def test_exchanged_files_are_found(one, other, copied, caplog):
    files = [copied.folder / f"{name}.safetensors" for name in (one, other)]
    exchange(*files)
    caplog.clear()
    cache, teacher = copied.fill()
    assert teacher.calls and all(file.name in caplog.text for file in files)
    copied.assert_right(cache)


def test_any_flipped_bit_is_found_or_harmless(copied):
    file = copied.folder / "logits-00001.safetensors"
    whole = file.read_bytes()
    starts = data_starts(file)
    for position in [*range(0, 8), *range(8, starts, 5), *range(starts, len(whole), 3)]:
        flip(file, position)
        cache, teacher = copied.fill(Wanted(logits=True))
        if position >= starts:
            assert teacher.calls, position
        copied.assert_right(cache, Wanted(logits=True))
        file.write_bytes(whole)


def test_every_file_of_another_teacher_under_our_manifest(built, copied):
    for file in shards(built[1].folder):
        shutil.copy(file, copied.folder)
    cache, teacher = copied.fill()
    assert Counter(teacher.ids) == Counter(built[0].encoded["id"][:]) and max(teacher.computed.values()) == 1
    copied.assert_right(cache)


def test_damage_outside_of_what_is_needed_is_left_to_those_who_need_it(copied):
    flip(copied.folder / "hidden.2-00001.safetensors", -1)
    assert not copied.fill(Wanted(logits=True, hidden=[1]))[1].calls
    cache, teacher = copied.fill(Wanted(hidden=[2]))
    assert teacher.calls
    copied.assert_right(cache, Wanted(hidden=[2]))


def test_a_folder_in_the_place_of_a_file(copied):
    file = copied.folder / "hidden.2-00001.safetensors"
    file.unlink()
    file.mkdir()
    with pytest.raises(RunError, match="is a folder or a device"):
        copied.fill()


# Caches that were made for something else


def other_weights(at):
    model = copy.deepcopy(at.model)
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.bias[3] += 1e-6
    return {"model": model}


def other_config(at):
    model = copy.deepcopy(at.model)
    model.config.layer_norm_eps = 1e-3  # the same weights, another function
    return {"model": model}


def other_tokenizer(at, folder):
    """Give another meaning to ids that the data do not hold; the data stay the same, id for id."""
    make_wordpiece([" ".join([*WORDS[:-1], "quartz"])], folder, vocab_size=VOCAB)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.get_vocab() != at.tokenizer.get_vocab()
    return {"tokenizer": tokenizer}


def other_column(at, column, change):
    values = {name: at.encoded[name][:] for name in at.encoded.column_names}
    change(values[column])
    return {"encoded": datasets.Dataset.from_dict(values)}


def change_token(rows):
    rows[7][3] = 5 + (rows[7][3] - 4) % (VOCAB - 5)


def change_segment(rows):
    rows[7][3] ^= 1


def change_id(ids):
    ids[2] = 77


def add_token(rows):
    rows[7].append(9)


FOREIGN = {
    "weights": (other_weights, r"teacher|weights"),
    "config": (other_config, r"teacher|config"),
    "token": (lambda at: other_column(at, "input_ids", change_token), "data"),
    "segment": (lambda at: other_column(at, "token_type_ids", change_segment), "data"),
    "id": (lambda at: other_column(at, "id", change_id), "data"),
    "fewer": (lambda at: {"encoded": at.encoded.select(range(8))}, "data"),
    "exchanged": (lambda at: other_column(at, "id", lambda ids: ids.reverse()), "data"),
    "max_length": (lambda at: {"max_length": 20}, "max_length"),
    "dtype": (lambda at: {"dtype": "float16"}, "cache_dtype"),
}


@pytest.mark.parametrize("kind", [*FOREIGN, "tokenizer"])
def test_a_cache_of_something_else_is_refused_and_left_alone(kind, copied, tmp_path):
    if kind == "tokenizer":
        changes, named = other_tokenizer(copied, tmp_path / "tokenizer"), "tokenizer"
    else:
        change, named = FOREIGN[kind]
        changes = change(copied)
    before = contents(copied.folder)
    with pytest.raises(CacheError) as caught:
        copied.changed(**changes).open()
    message = str(caught.value)
    assert "cache" in message and re.search(named, message), message
    for other in {"max_length", "tokenizer"} - {kind}:
        assert other not in message.partition("differs in")[2], message  # only what differs
    assert contents(copied.folder) == before
    assert not copied.fill()[1].calls


def test_the_same_teacher_is_known_again(copied, tmp_path):
    """Take another copy in another place, a tokenizer that has been used, a model that has been trained with."""
    copied.model.save_pretrained(tmp_path / "elsewhere" / "teacher")
    copied.tokenizer.save_pretrained(tmp_path / "elsewhere" / "teacher")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "elsewhere" / "teacher")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "elsewhere" / "teacher")
    again = copied.changed(model=model.train().requires_grad_(False), tokenizer=tokenizer)
    known = again.print()
    assert not again.fill()[1].calls
    model(**tokenizer("the cat", return_tensors="pt"))
    tokenizer(["the cat", "a"], padding="max_length", truncation=True, max_length=4)  # it remembers how it was called
    assert again.print() == known
    assert not again.fill()[1].calls


def test_a_folder_that_holds_other_files(setting):
    setting.folder.mkdir()
    (setting.folder / "thesis.txt").write_text("mine")
    before = contents(setting.folder)
    with pytest.raises(CacheError, match="cache"):
        setting.fill()
    assert contents(setting.folder) == before and len(list(setting.folder.iterdir())) == 1


def test_a_folder_that_holds_other_folders(setting):
    """Find somebody's runs there, for example."""
    (setting.folder / "runs" / "first").mkdir(parents=True)
    (setting.folder / "runs" / "first" / "recipe.yaml").write_text("mine")
    with pytest.raises(CacheError, match="cache"):
        setting.fill()
    assert [path.name for path in setting.folder.iterdir()] == ["runs"]


def test_a_file_in_the_place_of_the_folder(setting):
    setting.folder.write_text("mine")
    with pytest.raises(CacheError, match="cache"):
        setting.fill()
    assert setting.folder.read_text() == "mine"


def test_an_empty_folder_is_used(setting):
    setting.folder.mkdir()
    setting.assert_right(setting.fill()[0])


@pytest.mark.parametrize("text", [b"", b'{"fingerprint": ', b"[]", b"{}", b"null", b"\xff\xfe\x00", b'{"a": 1}'])
def test_a_damaged_manifest_is_refused(text, copied):
    (copied.folder / "manifest.json").write_bytes(text)
    before = contents(copied.folder)
    with pytest.raises(CacheError, match=r"manifest|made for"):
        copied.fill()
    assert contents(copied.folder) == before


def test_a_manifest_whose_values_are_of_another_kind(copied):
    file = copied.folder / "manifest.json"
    good = json.loads(file.read_text())
    for key in good:
        for value in (None, [], {}, "x", -1):
            file.write_text(json.dumps(good | {key: value}))
            try:
                cache, _ = copied.fill()
            except CacheError:
                continue
            copied.assert_right(cache)  # the entry does not matter for what is read


def test_a_manifest_that_is_missing(copied):
    (copied.folder / "manifest.json").unlink()
    before = contents(copied.folder)
    with pytest.raises(CacheError, match="other files"):
        copied.fill()
    assert contents(copied.folder) == before


def test_temporary_leftovers_are_removed(copied):
    half = (copied.folder / "logits-00000.safetensors").read_bytes()[:100]
    names = [".limbeck-new-k3j4h5.safetensors", ".limbeck-new-abc_1234.safetensors", ".limbeck-new-x7y8z9.json"]
    for name in names:
        (copied.folder / name).write_bytes(half)
    cache, teacher = copied.fill()
    assert not teacher.calls
    copied.assert_right(cache)
    # removed when something is to be written, because only who holds the lock knows that nobody else is writing them
    (copied.folder / "logits-00000.safetensors").unlink()
    cache, _ = copied.fill()
    assert not leftovers(copied.folder)
    copied.assert_right(cache)


def test_killed_while_the_manifest_was_written(setting):
    """Find nothing but a temporary file, which is no folder of somebody else's."""
    setting.folder.mkdir()
    (setting.folder / ".limbeck-new-x7y8z9.json").write_text('{"fing')
    setting.assert_right(setting.fill()[0])
    assert not leftovers(setting.folder)


# Disk


def test_too_little_space_is_said_before_anything_is_written(setting, monkeypatch):
    usage = shutil.disk_usage(setting.folder.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10_000))
    teacher = Counted(setting.model)
    with pytest.raises(CacheError) as caught:
        setting.fill(teacher=teacher)
    message = str(caught.value)
    assert "free" in message and sum(character.isdigit() for character in message) >= 2
    assert not teacher.calls and not shards(setting.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10_000_000))
    setting.fill()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10_000))
    cache, teacher = setting.fill()  # nothing is left to write
    assert not teacher.calls
    setting.assert_right(cache)


def test_only_what_is_missing_must_fit_on_the_disk(setting, monkeypatch):
    setting.fill()
    for file in shards(setting.folder, "hidden.3"):
        file.unlink()
    usage = shutil.disk_usage(setting.folder.parent)
    needed = sum(LENGTHS) * 32 * 4
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=3 * needed))  # all would take 10 times it
    setting.assert_right(setting.fill()[0])


def test_a_folder_that_cannot_be_made(setting):
    (setting.folder.parent / "file").write_text("")
    at = setting.changed(folder=setting.folder.parent / "file" / "cache")
    with pytest.raises(CacheError, match="cache"):
        at.fill()


def test_no_space_left_while_writing(setting, monkeypatch):
    """Fill the disk up in the middle of a file."""
    real, written = Path.write_bytes, []

    def write(path, content):
        written.append(path)
        if len(written) == 8:
            real(path, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", write)
        with pytest.raises(CacheError, match=r"(?i)no space left|disk is full"):
            setting.fill()
    assert len(shards(setting.folder)) == 7 and not leftovers(setting.folder)
    before = contents(setting.folder)
    cache, teacher = setting.fill()
    after = contents(setting.folder)
    assert all(after[name] == file for name, file in before.items() if name != "manifest.json")
    assert max(teacher.computed.values()) == 1 and len(teacher.computed) < len(IDS) * len(names(EVERYTHING))
    setting.assert_right(cache)
