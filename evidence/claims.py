"""List what the papers claim, as pairs of methods of which one should be better, and tell whether it was so here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from evidence.results import TASKS, MethodRuns, ResultFiles, compared, testable
from limbeck.stats import Comparison

LEVEL = 0.05
Verdict = Literal["yes", "no", "not decided", "not tested"]


@dataclass(frozen=True)
class Claim:
    """State that ``better`` should score more than each of ``than``."""

    paper: str
    words: str
    better: str
    than: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """Hold the test of one pair of methods on one task."""

    ours: MethodRuns
    theirs: MethodRuns
    test: Comparison
    p: float  # after Holm's correction for all tests of the claim

    @property
    def sure(self) -> bool:
        """Tell whether the difference is beyond chance."""
        return self.p < LEVEL


CLAIMS = (
    Claim("Anonymous (ACL)", "CKA beside logits and labels beats fine-tuning", "cka", ("ft",)),
    Claim("Anonymous (ACL)", "Shape beside logits and labels beats fine-tuning", "shape", ("ft",)),
    Claim("Anonymous (ACL)", "CKA adds to what the logits give", "cka", ("kd",)),
    Claim("Anonymous (ACL)", "Shape adds to what the logits give", "shape", ("kd",)),
    Claim("Anonymous (ACL)", "CKA is the better of the two measures", "cka", ("shape",)),
    Claim("Anonymous (ACL)", "three aligned pairs of layers beat one (CKA)", "cka, 3 pairs", ("cka, 1 pair",)),
    Claim("Anonymous (ACL)", "three aligned pairs of layers beat one (Shape)", "shape, 3 pairs", ("shape, 1 pair",)),
    Claim("Jung et al. 2023", "FSD beats distillation of the logits", "fsd", ("kd",)),
    Claim("Jung et al. 2023", "FSD beats PKD and RKD", "fsd", ("pkd", "rkd")),
    Claim(
        "Jung et al. 2023",
        "all three structures together beat fewer of them",
        "fsd",
        ("fsd without L and G", "fsd without I and G", "fsd without I and L", "fsd without G"),
    ),
    Claim("Huang et al. 2023", "FCD beats fine-tuning", "fcd", ("ft",)),
    Claim("Huang et al. 2023", "FCD beats distillation of the logits", "fcd", ("kd",)),
    Claim("Huang et al. 2023", "FCD beats relations of queries, keys and values (MiniLMv2)", "fcd", ("minilmv2",)),
    Claim(
        "Huang et al. 2023", "Pearson's correlation is a better loss than MSE and KL", "fcd", ("fcd, MSE", "fcd, KL")
    ),
    Claim(
        "Huang et al. 2023",
        "l2 is a better norm than none, LayerNorm and softmax",
        "fcd",
        ("fcd, no norm", "fcd, LayerNorm", "fcd, softmax"),
    ),
    Claim(
        "Huang et al. 2023",
        "layers spread evenly beat top and bottom ones",
        "fcd",
        ("fcd, top layers", "fcd, bottom layers"),
    ),
    Claim("Saadi et al. 2023", "ICS beats distillation of the logits", "ics", ("kd",)),
    Claim("Saadi et al. 2023", "ICS beats PKD", "ics", ("pkd",)),
)


def findings_of(claim: Claim, results: ResultFiles) -> list[Finding]:
    """Test a claim on every task where both methods have two seeds or more and settings found in the same way."""
    pairs = [pair for other in claim.than for pair in _pairs(results, claim.better, other)]
    tests = compared(pairs)
    return [Finding(*pair, *found) for pair, found in zip(pairs, tests, strict=True)]


def verdict(findings: Sequence[Finding]) -> Verdict:
    """Decide: yes where a difference is there and none points the other way, no where it is the other way round."""
    if not findings:
        return "not tested"
    directions = {finding.test.difference > 0 for finding in findings if finding.sure}
    if len(directions) != 1:
        return "not decided"
    return "yes" if directions.pop() else "no"


def _pairs(results: ResultFiles, ours: str, theirs: str) -> list[tuple[MethodRuns, MethodRuns]]:
    """Pair a chosen setting with a chosen one, a fixed one with a fixed one."""
    found = []
    for task in TASKS:
        chosen = results.searched(task, ours), results.searched(task, theirs)
        fixed = results.fixed(task, ours), results.fixed(task, theirs)
        found += [pair for pair in (chosen, fixed) if testable(*pair)][:1]
    return found  # type: ignore[return-value]
