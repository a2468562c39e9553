"""Test differences between scores over seeds, and between predictions example by example."""

from limbeck.stats.tests import (
    Comparison,
    Sided,
    Summary,
    bootstrap_interval,
    holm,
    mcnemar,
    mcnemar_over_seeds,
    paired_bootstrap,
    seeds_needed,
    summary,
    t_test,
    warning_about,
)

__all__ = [
    "Comparison",
    "Sided",
    "Summary",
    "bootstrap_interval",
    "holm",
    "mcnemar",
    "mcnemar_over_seeds",
    "paired_bootstrap",
    "seeds_needed",
    "summary",
    "t_test",
    "warning_about",
]
