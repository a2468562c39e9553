"""Made-up reviews: the same on every call, balanced, grammatical, and labelled by what they say."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from itertools import islice

import pytest

from limbeck.errors import DataError
from limbeck.tasks.reviews import (
    ASPECTS,
    ATTRIBUTES,
    FRAMES,
    LIKING,
    NOUNS,
    OPEN,
    PLEASING,
    PREDICATES,
    SIGN,
    Noun,
    Said,
    although,
    both,
    but,
    clause,
    despite,
    embed,
    generate,
    left_open,
    relative,
    reviews,
    state,
    unsettled,
)

SOUP = Noun("the soup", False, "food")
BEDS = Noun("the beds", True, "room")
NUMBER = {noun.text: noun.plural for noun in NOUNS} | {"it": False, "they": True}
PLURAL_VERB = {"was": False, "has": False, "were": True, "have": True}

# Written by hand, apart from the grammar's own tables, so that a wrong sign there shows here.
HARMLESS = r"no doubt|nobody can deny|never failed|nothing short of|nothing if not"
REVERSAL = r"not|hardly|far from|anything but|by no means|never been|less than|none of us|nobody was|nobody could claim"
PRAISE = {"good", "superb", "fresh", "polite", "liked", "delighted", "fair", "moving", "peaceful"}
BLAME = {"bad", "dismal", "stale", "rude", "hated", "annoyed", "steep", "boring", "unpleasant"}
BASES = dict.fromkeys(("enjoy", "like", "appreciate", "admire", "impress", "please", "delight", "charm"), 1)
BASES |= dict.fromkeys(("regret", "dislike", "resent", "hate", "disappoint", "annoy", "frustrate", "irritate"), -1)


def read(text: str) -> int:
    """The opinion of one clause: the sign of its opinion word, reversed once by each negation."""
    if re.search(r"\b(whether|if (?!not))", text):
        return 0
    (word,) = [word for word in re.findall(r"\w+", text) if word in SIGN or word in BASES]
    negations = re.findall(rf"\b(?:{REVERSAL})\b", re.sub(HARMLESS, "", text))
    return (SIGN | BASES)[word] * (-1) ** len(negations)


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)


@pytest.fixture(scope="module")
def sample() -> list[Said]:
    return list(islice(generate(0), 3000))


def test_lexicon_signs() -> None:
    assert {SIGN[word] for word in PRAISE} == {1}
    assert {SIGN[word] for word in BLAME} == {-1}
    assert sum(SIGN.values()) == 0


def test_lexicon_has_no_word_twice() -> None:
    assert len(NUMBER) == len(NOUNS) + 2
    words = [word for aspect in ASPECTS.values() for word in aspect.praise + aspect.blame]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("template", "effects", "word", "text", "opinion"),
    [
        ("{be} {word}", PREDICATES, "fresh", "was fresh", 1),
        ("{be} not {word}", PREDICATES, "fresh", "was not fresh", -1),
        ("{be} not {word}", PREDICATES, "bad", "was not bad", 1),
        ("{be} hardly {word}", PREDICATES, "good", "was hardly good", -1),
        ("{be} far from {word}", PREDICATES, "stale", "was far from stale", 1),
        ("{be} anything but {word}", PREDICATES, "good", "was anything but good", -1),
        ("{be} nothing short of {word}", PREDICATES, "superb", "was nothing short of superb", 1),
        ("{have} never been {word}", PREDICATES, "bland", "has never been bland", 1),
        ("less than {word}", ATTRIBUTES, "fresh", "less than fresh", -1),
        ("{noun} {be} not {word} by anyone", LIKING, "liked", "the soup was not liked by anyone", -1),
        ("it was {noun} that {word} us", PLEASING, "annoyed", "it was the soup that annoyed us", -1),
        ("nobody was {word} by {noun}", PLEASING, "annoyed", "nobody was annoyed by the soup", 1),
    ],
)
def test_state(template: str, effects: dict[str, int], word: str, text: str, opinion: int) -> None:
    assert state(template, effects, SOUP, word) == Said(text, opinion)


@pytest.mark.parametrize(
    ("template", "opinion"),
    [
        ("there is no doubt that {clause}", -1),
        ("nobody can deny that {clause}", -1),
        ("I would not say that {clause}", 1),
        ("nobody could claim that {clause}", 1),
        ("nobody told us whether {clause}", 0),
    ],
)
def test_embed(template: str, opinion: int) -> None:
    not_fresh = Said("the soup was not fresh", -1)
    assert embed(template, not_fresh).opinion == opinion


def test_verbs_agree_with_their_noun() -> None:
    assert state("{be} {word}", PREDICATES, BEDS, "cosy").text == "were cosy"
    assert state("{have} never been {word}", PREDICATES, BEDS, "cosy").text == "have never been cosy"
    assert state("what {word} us {be} {noun}", PLEASING, BEDS, "pleased").text == "what pleased us were the beds"


def test_every_effect_reverses_only_when_its_words_do() -> None:
    for effects in (PREDICATES, ATTRIBUTES, LIKING, PLEASING):
        for template in effects:
            text, opinion = state(template, effects, SOUP, "hated", "hate")
            assert opinion == read(text), text
    for template in FRAMES | OPEN:
        text, opinion = embed(template, Said("the soup was good", 1))
        assert opinion == read(text), text


def test_clauses_say_what_their_opinion_claims(rng: random.Random) -> None:
    seen = Counter()
    for _ in range(2000):
        text, opinion = clause(rng, SOUP, main=True)
        assert opinion == read(text), text
        seen[opinion] += 1
    assert min(seen[1], seen[-1]) > 850
    assert all(left_open(rng, BEDS).opinion == 0 for _ in range(100))


def test_the_main_point_of_a_contrast_wins(rng: random.Random) -> None:
    for _ in range(300):
        text, opinion = but(rng, SOUP, BEDS)
        first, last = re.split(r"[,;.] (?:but|however|yet|Still|all the same),? ", text)
        assert read(first) == -opinion and read(last) == opinion, text
        text, opinion = although(rng, SOUP, BEDS)
        apart = re.fullmatch(
            r"(?:although|even though|though) (.*), (.*)|(.*), (?:although|even though|though) (.*)", text
        )
        assert apart, text
        other, main = (apart[1], apart[2]) if apart[1] else (apart[4], apart[3])
        assert read(main) == opinion and read(other) == -opinion and "soup" in other, text
        text, opinion = despite(rng, SOUP, BEDS)
        (main,) = [part for part in text.split(", ") if "beds" in part]
        assert read(main) == opinion, text
        text, opinion = relative(rng, SOUP, BEDS)
        start, between, predicate = text.split(", ")
        assert read(predicate) == opinion and start == "the soup" and "beds" in between, text
        assert predicate.split()[0] not in {"were", "have"}, text


def test_other_pairs(rng: random.Random) -> None:
    for _ in range(300):
        text, opinion = both(rng, SOUP, BEDS)
        first, last = re.split(r", and |; moreover, |\. |; besides, ", text)
        assert read(first) == read(last) == opinion, text
        text, opinion = unsettled(rng, SOUP, BEDS)
        assert sorted(map(read, text.split(", but "))) == sorted([0, opinion]), text


def test_ellipsis(sample: list[Said]) -> None:
    found = Counter()
    for text, opinion in sample:
        for pattern, sign in {
            r"(?:was|were) (\w+), and so w": 1,
            r"(?:was|were) not (\w+), and neither w": -1,
            r"(?:was|were) (\w+), but the [\w ]+ (?:was|were) not\b(?! )": -1,
            r"(?:was|were) not (\w+), but the [\w ]+ (?:was|were)\b(?! )": 1,
        }.items():
            if match := re.search(pattern, text):
                assert opinion == SIGN[match[1]] * sign, text
                found[pattern] += 1
    assert len(found) == 4


def test_agreement_in_whole_reviews(sample: list[Said]) -> None:
    nouns = "|".join(NUMBER)
    verbs = "|".join(PLURAL_VERB)
    checked = 0
    for text, _ in sample:
        text = text.lower()
        # A cleft's "it was" agrees with "it", not with what follows.
        pairs = re.findall(rf"\b({nouns}) ({verbs})\b", text)
        pairs += [(n, v) for v, n in re.findall(rf"\b(?:so|neither|us) ({verbs}) ({nouns})\b", text)]
        pairs += re.findall(rf"^(?:[\w ]+\. )?({nouns}), (?:which|whom) [^,]+, ({verbs})\b", text)
        for noun, verb in pairs:
            assert NUMBER[noun] == PLURAL_VERB[verb], text
        checked += len(pairs)
    assert checked > 2000


def test_reviews_read_as_sentences(sample: list[Said]) -> None:
    for text, _ in sample:
        assert re.fullmatch(r"[A-Z][A-Za-z ,;]*(?:\. [A-Z][A-Za-z ,;]*)*\.", text), text
        assert "  " not in text and len(text.split()) <= 40, text


def test_every_seed_makes_the_same_reviews_again() -> None:
    assert list(islice(generate(3), 200)) == list(islice(generate(3), 200))
    assert list(islice(generate(3), 200)) != list(islice(generate(4), 200))
    # Pinned: results in the documentation rest on this data, on every platform and version of Python.
    text = "\n".join(said.text for said in islice(generate(0), 1000))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "6ec4b6e57c6f6af5"


def test_task() -> None:
    task = reviews(size=600)
    assert (task.name, task.text_columns, task.metrics[0], task.num_labels) == ("reviews", ("review",), "accuracy", 3)
    assert task.label_names == ("negative", "neutral", "positive")
    assert {name: len(split) for name, split in task.splits.items()} == {
        "train": 600,
        "validation": 1000,
        "test": 1000,
    }
    texts = [text for split in task.splits.values() for text in split["review"]]
    assert len(set(texts)) == len(texts)
    for split in task.splits.values():
        assert split["id"][:3] == [0, 1, 2]
        counts = Counter(split["label"])
        assert max(counts.values()) - min(counts.values()) <= 1


def test_held_out_rows_do_not_depend_on_the_size() -> None:
    small, large = reviews(size=3, seed=1), reviews(size=30, seed=1)
    for name in ("validation", "test"):
        assert small.split(name).to_dict() == large.split(name).to_dict()


@pytest.mark.parametrize("size", [-1, 2, 100_001])
def test_size_out_of_range(size: int) -> None:
    with pytest.raises(DataError, match=r"3 to 100,000 training rows, not"):
        reviews(size=size)
