"""Test differences between scores over seeds, and between predictions example by example."""

from limbeck.stats.tests import Comparison as Comparison
from limbeck.stats.tests import Sided as Sided
from limbeck.stats.tests import Summary as Summary
from limbeck.stats.tests import bootstrap_interval as bootstrap_interval
from limbeck.stats.tests import holm as holm
from limbeck.stats.tests import mcnemar as mcnemar
from limbeck.stats.tests import mcnemar_over_seeds as mcnemar_over_seeds
from limbeck.stats.tests import paired_bootstrap as paired_bootstrap
from limbeck.stats.tests import seeds_needed as seeds_needed
from limbeck.stats.tests import summary as summary
from limbeck.stats.tests import t_test as t_test
from limbeck.stats.tests import warning_about as warning_about
