"""Make up hotel reviews from a small grammar of English, so that the demo needs no data and no network.

A row is a review of one to three things (food, staff, rooms, ...) and its label is the verdict: positive,
negative, or neutral when no opinion is asserted at all. Labels are computed, never guessed: each word of praise
or blame has a sign, and every construction says what it does with the signs of its parts.

- Negation reverses a sign, twice reversed is restored: "not bad", "far from fresh", "I would not say that ...".
  Some phrases only look negative: "nothing short of superb", "there is no doubt that ...".
- What is merely wondered about is not asserted: "nobody told us whether the soup was fresh" is neutral.
- In a contrast the main point wins: after "but", outside "although" and "despite", outside a relative clause.
- Word order and form vary: active, passive, cleft, fronting, ellipsis ("and neither were the beds"), pronouns
  and verbs that agree with a noun which other nouns separate from them.

The data is synthetic and serves to demonstrate and to test; scores on it say nothing about real text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from limbeck.errors import DataError
from limbeck.tasks.task import Task, make_split

T = TypeVar("T")

LABELS = ("negative", "neutral", "positive")
HELD_OUT = 1000  # rows of the validation split, and of the test split
LARGEST = 100_000
REVERSED = 0.2  # share of negations where one can stand; at one half no single word would hint at the label


class Noun(NamedTuple):
    """Hold a noun phrase; ``text`` begins with "the", or is a pronoun."""

    text: str
    plural: bool
    aspect: str


class Said(NamedTuple):
    """Hold a piece of text, and the opinion it asserts: -1, 0 or 1."""

    text: str
    opinion: int


def _words(row: str) -> list[str]:
    return row.split(", ")


def _effects(keep: str, reverse: str) -> dict[str, int]:
    """Return templates, each with whether it keeps the sign of what it holds (1) or reverses it (-1)."""
    return dict.fromkeys(keep.split(" / "), 1) | dict.fromkeys(reverse.split(" / "), -1)


class Aspect(NamedTuple):
    """Hold what can be said about one side of a hotel."""

    singular: list[str]
    plural: list[str]
    praise: list[str]
    blame: list[str]
    facts: list[str]


_LEXICON = """
food: soup, pasta, fish, dessert, breakfast: pancakes, starters, steaks, salads
: delicious, tasty, fresh: bland, stale, burnt
: came with a slice of lemon, {be} served at noon, {be} made with local cheese
drinks: coffee, wine, tea, beer: cocktails, juices, smoothies
: refreshing, aromatic, smooth: watery, sour, lukewarm
: came in tall glasses, {be} poured at the table, {be} listed on a blackboard
staff: night shift, crew, kitchen team: waiters, receptionists, porters, cleaners
: friendly, polite, attentive: rude, careless, impatient
: worked until midnight, {be} introduced on the first day, changed at six
room: bedroom, bathroom, suite, balcony: beds, towels, pillows, curtains
: spotless, cosy, comfortable: dirty, shabby, damp
: {be} kept in grey, {be} on the third floor, {be} renewed last year
music: band, choir, playlist, concert: pianists, songs, singers
: lively, soulful, moving: boring, tuneless, deafening
: started at eight, {be} announced on a poster, filled half of the evening
price: bill, fee, deposit, rate: prices, charges, fares
: fair, reasonable, modest: excessive, outrageous, steep
: {be} printed on the last page, {be} in euros, included the tax
place: garden, terrace, lobby, pool: beaches, paths, lawns
: pretty, peaceful, picturesque: ugly, gloomy, neglected
: faced the old harbour, {be} closed on Monday, {be} close to the station
"""
ASPECTS = {
    name: Aspect(*map(_words, fields))
    for name, *fields in (entry.split(": ") for entry in _LEXICON.replace("\n:", ":").strip().split("\n"))
}
_PEOPLE = _words("night shift, crew, kitchen team, band, choir, pianists, singers") + ASPECTS["staff"].plural
_PRAISE = _words("good, great, excellent, wonderful, superb, pleasant, lovely, impressive, fantastic, perfect")
_BLAME = _words("bad, poor, awful, terrible, dreadful, horrible, disappointing, dismal, unpleasant, appalling")
_FACTS = _words("{be} mentioned on the website, {be} described in the guidebook, {be} not in the brochure")
# past form: base form
_LIKE = {"enjoyed": "enjoy", "liked": "like", "appreciated": "appreciate", "admired": "admire"}
_HATE = {"regretted": "regret", "disliked": "dislike", "resented": "resent", "hated": "hate"}
_PLEASE = {"impressed": "impress", "pleased": "please", "delighted": "delight", "charmed": "charm"}
_ANNOY = {"disappointed": "disappoint", "annoyed": "annoy", "frustrated": "frustrate", "irritated": "irritate"}

NOUNS = [
    Noun(f"the {word}", plural, name)
    for name, aspect in ASPECTS.items()
    for plural, words in ((False, aspect.singular), (True, aspect.plural))
    for word in words
]
SIGN: dict[str, int] = {
    **dict.fromkeys((*_PRAISE, *_LIKE, *_PLEASE), 1),
    **dict.fromkeys((*_BLAME, *_HATE, *_ANNOY), -1),
    **{word: 1 for aspect in ASPECTS.values() for word in aspect.praise},
    **{word: -1 for aspect in ASPECTS.values() for word in aspect.blame},
}

PREDICATES = _effects(
    keep="{be} {word} / {be} simply {word} / {be} truly {word} / turned out to be {word} / {have} always been {word}"
    " / {be} nothing short of {word} / {be} nothing if not {word}",
    reverse="{be} not {word} / {be} not {word} at all / {be} hardly {word} / {be} far from {word}"
    " / {be} anything but {word} / {be} by no means {word} / {have} never been {word}",
)
ATTRIBUTES = _effects(keep="{word} / truly {word}", reverse="not exactly {word} / far from {word} / less than {word}")
LIKING = _effects(
    keep="we {word} {noun} / all of us {word} {noun} / {noun} {be} {word} by everyone",
    reverse="we did not {base} {noun} / none of us {word} {noun} / {noun} {be} not {word} by anyone",
)
PLEASING = _effects(
    keep="{noun} {word} us / we were {word} by {noun} / it was {noun} that {word} us / what {word} us {be} {noun}"
    " / {noun} never failed to {base} us",
    reverse="{noun} did not {base} us / we were not {word} by {noun} / nobody was {word} by {noun}",
)
FRONTED = _effects(keep="{noun} we really {word}", reverse="{noun} we did not {base} at all")
FRAMES = _effects(
    keep="I must say that {clause} / there is no doubt that {clause} / nobody can deny that {clause}",
    reverse="I would not say that {clause} / nobody could claim that {clause} / it is not true that {clause}",
)
# Under these nothing is asserted.
OPEN = dict.fromkeys(
    (
        "I cannot say whether {clause}",
        "my sister wondered whether {clause}",
        "nobody told us whether {clause}",
        "we never found out if {clause}",
    ),
    0,
)
_RELATIVES = _words("we noticed after, the brochure shows next to, our guide mentioned before, I remember along with")


def pick(rng: random.Random, items: Sequence[T]) -> T:
    """Draw one item. Only ``random()`` is promised to repeat on every version of Python; ``choice`` is not."""
    return items[int(rng.random() * len(items))]


def be(noun: Noun) -> str:
    """Return the past of "be" that agrees with the noun."""
    return "were" if noun.plural else "was"


def pronoun(noun: Noun) -> Noun:
    """Replace the noun phrase by "it" or "they"."""
    return noun._replace(text="they" if noun.plural else "it")


def state(template: str, effects: Mapping[str, int], noun: Noun, word: str, base: str = "") -> Said:
    """Fill a template about a noun; its opinion is the word's sign after the template's effect."""
    have = "have" if noun.plural else "has"
    text = template.format(noun=noun.text, be=be(noun), have=have, word=word, base=base)
    return Said(text, SIGN[word] * effects[template])


def embed(template: str, clause: Said) -> Said:
    """Put a clause under "I would not say that", "nobody told us whether" and the like."""
    return Said(template.format(clause=clause.text), clause.opinion * (FRAMES | OPEN)[template])


def _operator(rng: random.Random, effects: Mapping[str, int]) -> str:
    wanted = -1 if rng.random() < REVERSED else 1
    return pick(rng, [template for template, effect in effects.items() if effect == wanted])


def adjective(rng: random.Random, noun: Noun, *, general: bool = False) -> str:
    """Draw a word of praise or blame; ``general`` ones fit every noun."""
    blame = rng.random() < 0.5
    if general or rng.random() < 0.5:
        return pick(rng, _BLAME if blame else _PRAISE)
    return pick(rng, ASPECTS[noun.aspect].blame if blame else ASPECTS[noun.aspect].praise)


def predicate(rng: random.Random, noun: Noun) -> Said:
    """Say something good or bad of the noun, without the noun itself: "was not exactly fresh"."""
    return state(_operator(rng, PREDICATES), PREDICATES, noun, adjective(rng, noun))


def attribute(rng: random.Random, noun: Noun) -> Said:
    """Put an adjective into the noun phrase: "the not exactly fresh soup"."""
    text, opinion = state(_operator(rng, ATTRIBUTES), ATTRIBUTES, noun, adjective(rng, noun))
    return Said(f"the {text} {noun.text.removeprefix('the ')}", opinion)


def clause(rng: random.Random, noun: Noun, *, main: bool = False) -> Said:
    """Make a clause with an opinion on the noun; only a main clause may put something in front."""
    kind = rng.random()
    if kind < 0.2:
        template = "{be} not {word}" if rng.random() < REVERSED else "{be} {word}"
        text, opinion = state(template, PREDICATES, noun, adjective(rng, noun))
        return embed(_operator(rng, FRAMES), Said(f"{noun.text} {text}", opinion))
    if kind < 0.5:
        effects = LIKING if kind < 0.35 else PLEASING
        if main and rng.random() < 0.3:
            effects = FRONTED
        blame = rng.random() < 0.5
        verbs = (_ANNOY if blame else _PLEASE) if effects is PLEASING else (_HATE if blame else _LIKE)
        word = pick(rng, list(verbs))
        return state(_operator(rng, effects), effects, noun, word, verbs[word])
    if main and kind < 0.6:
        text, opinion = predicate(rng, pronoun(noun))
        return Said(f"as for {noun.text}, {pronoun(noun).text} {text}", opinion)
    text, opinion = predicate(rng, noun)
    return Said(f"{noun.text} {text}", opinion)


def aside(rng: random.Random, noun: Noun) -> Said:
    """Say something about the noun that asserts no opinion: a fact, or an opinion left open."""
    if rng.random() < 0.7:
        facts = _FACTS if rng.random() < 0.5 else ASPECTS[noun.aspect].facts
        return Said(f"{noun.text} {pick(rng, facts).format(be=be(noun))}", 0)
    return left_open(rng, noun)


def left_open(rng: random.Random, noun: Noun) -> Said:
    """Mention an opinion without asserting it: "nobody told us whether the soup was fresh"."""
    text, opinion = state("{be} {word}", PREDICATES, noun, adjective(rng, noun))
    return embed(pick(rng, list(OPEN)), Said(f"{noun.text} {text}", opinion))


def _until(wanted: int, make: Callable[[], Said]) -> Said:
    while (said := make()).opinion != wanted:
        pass
    return said


def plain(rng: random.Random, a: Noun, b: Noun) -> Said:
    """Make one clause about the first noun."""
    return clause(rng, a, main=True)


def both(rng: random.Random, a: Noun, b: Noun) -> Said:
    """Join two clauses with the same opinion."""
    first = clause(rng, a, main=True)
    second = _until(first.opinion, lambda: clause(rng, b, main=True))
    link = pick(rng, (", and ", "; moreover, ", ". ", "; besides, "))
    return Said(first.text + link + second.text, first.opinion)


def but(rng: random.Random, a: Noun, b: Noun) -> Said:
    """Join two clauses of which the second is the main point."""
    last = clause(rng, b, main=True)
    first = _until(-last.opinion, lambda: clause(rng, a, main=True))
    link = pick(rng, (", but ", "; however, ", ", yet ", ". Still, ", "; all the same, "))
    return Said(first.text + link + last.text, last.opinion)


def _concede(rng: random.Random, other: str, main: Said) -> Said:
    return Said(f"{other}, {main.text}" if rng.random() < 0.5 else f"{main.text}, {other}", main.opinion)


def although(rng: random.Random, a: Noun, b: Noun) -> Said:
    """Join two clauses of which the one outside "although" is the main point, first or last."""
    word = pick(rng, ("although", "even though", "though"))
    main = clause(rng, b)
    other = _until(-main.opinion, lambda: clause(rng, a))
    return _concede(rng, f"{word} {other.text}", main)


def despite(rng: random.Random, a: Noun, b: Noun) -> Said:
    """Set a clause against a noun phrase with the opposite opinion; the clause is the main point."""
    word = pick(rng, ("despite", "in spite of", "notwithstanding"))
    main = clause(rng, b)
    other = _until(-main.opinion, lambda: attribute(rng, a))
    return _concede(rng, f"{word} {other.text}", main)


def relative(rng: random.Random, a: Noun, b: Noun) -> Said:
    """Give the first noun a predicate, whatever stands in between."""
    who = "whom" if a.text.removeprefix("the ") in _PEOPLE else "which"
    main = predicate(rng, a)
    text = f"{a.text}, {who} {pick(rng, _RELATIVES)} {attribute(rng, b).text}, {main.text}"
    return Said(text, main.opinion)


def likewise(rng: random.Random, a: Noun, b: Noun) -> Said:
    """Repeat the opinion by an ellipsis."""
    word = adjective(rng, a, general=True)
    if rng.random() < REVERSED:
        return Said(f"{a.text} {be(a)} not {word}, and neither {be(b)} {b.text}", -SIGN[word])
    return Said(f"{a.text} {be(a)} {word}, and so {be(b)} {b.text}", SIGN[word])


def opposed(rng: random.Random, a: Noun, b: Noun) -> Said:
    """Reverse the opinion by an ellipsis; the last one is the main point."""
    word = adjective(rng, a, general=True)
    if rng.random() < 0.5:
        return Said(f"{a.text} {be(a)} {word}, but {b.text} {be(b)} not", -SIGN[word])
    return Said(f"{a.text} {be(a)} not {word}, but {b.text} {be(b)}", SIGN[word])


def unsettled(rng: random.Random, a: Noun, b: Noun) -> Said:
    """Put an opinion next to one that is left open: the asserted one is the verdict."""
    said, other = clause(rng, a, main=True), left_open(rng, b)
    text = f"{said.text}, but {other.text}" if rng.random() < 0.5 else f"{other.text}, but {said.text}"
    return Said(text, said.opinion)


def nothing(rng: random.Random, a: Noun, b: Noun) -> Said:
    """Assert no opinion at all."""
    if rng.random() < 0.5:
        return left_open(rng, a)
    return Said(aside(rng, a).text + pick(rng, (", and ", ". ", "; ")) + aside(rng, b).text, 0)


# Plain reviews are common enough to teach the words; the others then show what moves a verdict.
_SHAPES = [plain] * 10 + [both] * 5 + [but] * 4 + [although] * 4 + [despite] * 3 + [relative] * 3
_SHAPES += [unsettled] * 3 + [likewise, opposed] + [nothing] * 10


def review(rng: random.Random) -> Said:
    """Write a whole review: one of the shapes, at times with an aside before or after it."""
    nouns: list[Noun] = []
    while len(nouns) < 3:
        noun = pick(rng, NOUNS)
        if noun.aspect not in {other.aspect for other in nouns}:
            nouns.append(noun)
    text, opinion = pick(rng, _SHAPES)(rng, nouns[0], nouns[1])
    if rng.random() < 0.1:
        extra = aside(rng, nouns[2]).text
        text = f"{text}. {extra}" if rng.random() < 0.5 else f"{extra}. {text}"
    return Said(". ".join(part[0].upper() + part[1:] for part in text.split(". ")) + ".", opinion)


def generate(seed: int) -> Iterator[Said]:
    """Yield distinct reviews without end; their labels take turns, so that every class has the same share."""
    rng, seen = random.Random(seed), set()
    while True:
        for wanted in (-1, 0, 1):
            said = review(rng)
            while said.opinion != wanted or said.text in seen:
                said = review(rng)
            seen.add(said.text)
            yield said


def reviews(*, size: int = 12_000, seed: int = 0) -> Task:
    """Make up reviews and their verdict, from a grammar (for demonstration): nothing to download.

    ``size`` is the number of training rows. Validation and test have 1,000 rows each, share no review with
    training or each other, and depend on ``seed`` alone.
    """
    if not len(LABELS) <= size <= LARGEST:
        raise DataError(f"The task 'reviews' can make {len(LABELS)} to {LARGEST:,} training rows, not {size:,}.")
    source = generate(seed)
    splits = {}
    for name, rows in (("test", HELD_OUT), ("validation", HELD_OUT), ("train", size)):
        said = [next(source) for _ in range(rows)]
        columns: dict[str, Sequence[object]] = {
            "id": range(rows),
            "review": [text for text, _ in said],
            "label": [opinion + 1 for _, opinion in said],
        }
        splits[name] = make_split(name, columns)
    return Task(
        name="reviews",
        problem="classification",
        text_columns=("review",),
        label_names=LABELS,
        metrics=("accuracy", "macro_f1"),
        splits={name: splits[name] for name in ("train", "validation", "test")},
    )
