"""Check timing in turns: order, percentiles, batches and names; nothing here depends on seconds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.tiny_models import VOCAB, tiny_model
from helpers.tiny_tokenizers import make_bpe
from transformers import AutoTokenizer

from limbeck.inference.latency import (
    _FEWEST,
    _MEASURED,
    _MOST,
    _WARM_UP,
    Timing,
    processor_name,
    random_batch,
    time_in_turns,
)

_TURN = _WARM_UP + _MEASURED


class Machine:
    """Keep a clock that only calls move; ``slow`` says how much slower the machine is at a time."""

    def __init__(self, slow=lambda now: 1.0):
        self.now, self.slow, self.made = 0.0, slow, []

    def clock(self):
        return self.now

    def model(self, name, seconds):
        def call():
            self.made.append(name)
            self.now += seconds * self.slow(self.now)

        return call


def runs_of(names):
    """Count repeats: ``aabb`` becomes [("a", 2), ("b", 2)]."""
    runs = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1][1] += 1
        else:
            runs.append([name, 1])
    return [tuple(run) for run in runs]


def test_models_take_turns_and_only_a_part_of_each_counts():
    machine = Machine()
    found = time_in_turns([machine.model(name, _MEASURED / 2.5) for name in "abc"], 0.0, machine.clock)
    uncounted = math.ceil(_WARM_UP / (_MEASURED / 2.5))
    assert runs_of(machine.made) == [(name, uncounted + 3) for name in "abc"] * _FEWEST
    assert [len(times) for times in found] == [3 * _FEWEST] * 3
    np.testing.assert_allclose(found, _MEASURED / 2.5)


def test_a_call_that_takes_longer_than_a_turn_is_made_twice_and_counts_once():
    machine = Machine()
    found = time_in_turns([machine.model("a", 3 * _MEASURED), machine.model("b", 2 * _WARM_UP)], 0.0, machine.clock)
    assert [len(times) for times in found] == [_FEWEST, _FEWEST]
    assert runs_of(machine.made) == [("a", 2), ("b", 2)] * _FEWEST


def test_what_a_model_suffers_from_the_one_before_it_does_not_count():
    """Let threads of ``b`` stay awake for a while after its turn, which makes ``a`` four times as slow meanwhile."""
    machine, ended = Machine(), [-math.inf]

    def b():
        machine.now += 0.01
        ended[0] = machine.now

    def a():
        machine.now += 0.04 if machine.now - ended[0] < _WARM_UP else 0.01

    found = time_in_turns([a, b], 0.0, machine.clock)
    np.testing.assert_allclose(np.concatenate(found), 0.01)


@pytest.mark.parametrize(("seconds", "turns"), [(0.0, _FEWEST), (39 * _TURN, 10), (1e9, _MOST)])
def test_time_decides_how_many_turns_there_are(seconds, turns):
    machine = Machine()
    found = time_in_turns([machine.model("a", 2 * _TURN)], seconds, machine.clock)
    assert len(found[0]) == turns


def test_a_busy_moment_hits_all_models_alike():
    """Make the machine four times as slow for half of the time: the ratio of the medians is as it would be."""
    machine = Machine(lambda now: 4.0 if int(now / (8 * _TURN)) % 2 else 1.0)
    slow, fast = time_in_turns(
        [machine.model("slow", _TURN / 10), machine.model("fast", _TURN / 20)], 100 * _TURN, machine.clock
    )
    ratio = Timing.of(slow, 1).p50_ms / Timing.of(fast, 1).p50_ms
    assert ratio == pytest.approx(2, rel=1e-6)
    assert {round(value / min(fast)) for value in fast} == {1, 4}


def test_percentiles_and_throughput_are_those_of_numpy():
    seconds = np.random.default_rng(0).gamma(2.0, 0.01, 137)
    timing = Timing.of(list(seconds), 8)
    assert timing.calls == 137
    assert timing.p50_ms == pytest.approx(1000 * np.median(seconds))
    assert timing.p95_ms == pytest.approx(1000 * np.quantile(seconds, 0.95))
    assert timing.examples_per_second == pytest.approx(8 / seconds.mean())


class Fake:
    def __init__(self, tokenizer, config):
        self.tokenizer, self.config = tokenizer, config


@pytest.fixture(params=["bert", "gpt2", "llama"])
def served(request, tokenizer_folder, tmp_path):
    folder = tokenizer_folder if request.param == "bert" else make_bpe(tmp_path / "words", request.param)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return Fake(tokenizer, tiny_model(request.param).config)


def test_texts_are_real_tokens_of_the_vocabulary_without_padding(served):
    batch = random_batch(served, 5, 11)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (5, 11)
    assert bool(batch["attention_mask"].all())
    ids = set(batch["input_ids"].flatten().tolist())
    assert len(ids) > 10 and not ids & set(served.tokenizer.all_special_ids)
    assert max(ids) < min(len(served.tokenizer), VOCAB)
    assert ("token_type_ids" in batch) == ("token_type_ids" in served.tokenizer.model_input_names)
    assert batch["input_ids"].equal(random_batch(served, 5, 11)["input_ids"])


def test_tokens_that_the_model_has_no_embedding_for_are_not_drawn(served):
    served.config.vocab_size = 20
    assert int(random_batch(served, 8, 64)["input_ids"].max()) < 20


def test_the_processor_has_a_name():
    assert processor_name().strip()
