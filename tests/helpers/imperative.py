"""Tell whether a docstring opens with a verb in the imperative, as far as spelling and a list of words can tell."""

from __future__ import annotations

import re

_FUNCTION_WORDS = """
    a about above across after again against all along already also although always among an and another any around as
    at away back because before behind below beneath beside besides between beyond both but by despite down during each
    either enough even every everything everybody everyone except few for from he hence her here his how however i if in
    inside instead into it its itself just last least less like many more most much my near neither never next no nobody
    none nor not nothing now of off often on once one only onto or other others otherwise our out outside over own per
    perhaps same several she since so some somebody someone something such than that the their them then there these
    they this those though through throughout thus to together too toward towards true under unless unlike until up upon
    upward us very via was we what whatever when whenever where wherever whether which while who whoever whom whose why
    with within without yes yet you your zero two three four five six seven eight nine ten first second third half false
"""

# words that opened docstrings of this project and are no verbs there
_NOUNS_AND_ADJECTIVES = """
    alphabetical attention base beta biased class column correlation dagger data dev dictionary different distance
    distinct done entry error euclidean example feature figure finite folder global gradient hidden horizontal inner
    intra intra-class jung knowledge large layer left line linear local long loss made-up mapping matrix mean median
    memory metadata method metric micro minimal nested new number official old outer parameter patient pearson plain
    prediction private public pure random real recipe relational relative representational row sentence shared short
    similar simple single small softmax speed student task teacher template tensor term text token tokenizer tuple
    unbiased usual value vector vertical whole width word
"""

# endings of nouns, adjectives, participles and third persons, with the verbs that have them all the same
_ENDINGS = {
    r"(?<!s)s": "bias focus canvas",
    "ed": "embed exceed feed need proceed seed shed succeed",
    "ing": "bring ping ring",
    "tion": "apportion caution condition mention partition position question section",
    "ment": "augment comment complement decrement document fragment implement increment segment supplement",
    "ity|ness|ance|ence": "advance balance fence reference sequence silence",
    "ly": "apply comply fly imply multiply rely reply supply tally",
}


def opens_with_a_verb(text: str) -> bool:
    """Say whether the first word of a docstring may be a verb in the imperative."""
    opening = re.match(r"([A-Z][a-z]+(?:-[a-z]+)*)(?=[\s,.:;])", text)
    if not opening:  # a name in backquotes, a formula, an acronym
        return False
    word = opening[1].lower()
    if word in f"{_FUNCTION_WORDS} {_NOUNS_AND_ADJECTIVES}".split():
        return False
    return not any(re.search(f"({ending})$", word) and word not in kept.split() for ending, kept in _ENDINGS.items())
