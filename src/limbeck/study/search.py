"""Choose the settings to try next and the trials to give up: Optuna decides, from what was tried so far.

Both are functions of their arguments alone. A study that is interrupted, or runs elsewhere, therefore makes the same
choices again, and its finished runs are the only record that it needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from limbeck.errors import MissingExtra

_TRIALS_BEFORE_PRUNING = 4


@dataclass(frozen=True)
class Trial:
    """Hold settings that were tried; ``score`` is None where a run failed or was not worth finishing."""

    point: dict[str, Any]
    score: float | None
    why: str = ""  # what went wrong, where something did


def best_trial(trials: Sequence[Trial], maximise: bool) -> Trial | None:
    """Return the trial with the best score, the first of several; None where none has a score."""
    scored = [(trial.score, trial) for trial in trials if trial.score is not None and math.isfinite(trial.score)]
    if not scored:
        return None
    return max(scored, key=lambda pair: pair[0] if maximise else -pair[0])[1]


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise MissingExtra("The sampler tpe needs Optuna: pip install 'limbeck[search]'.") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def require_optuna() -> None:
    """Raise with the install hint where Optuna is missing: now, not hours later."""
    _optuna()


def propose(space: dict[str, Any], tried: Sequence[Trial], seed: int, maximise: bool = True) -> dict[str, Any]:
    """Return the point that TPE proposes after those tried; lists are choices, ``{low, high, log}`` ranges."""
    optuna = _optuna()
    # choices go by their position, because one may be a list, which Optuna does not take
    choices = {key: value for key, value in space.items() if isinstance(value, list)}
    scale = {key: _distribution(optuna, value) for key, value in space.items()}
    sampler = optuna.samplers.TPESampler(seed=seed + len(tried))
    study = optuna.create_study(sampler=sampler, direction="maximize" if maximise else "minimize")
    for trial in tried:
        params = {key: choices[key].index(value) if key in choices else value for key, value in trial.point.items()}
        state = optuna.trial.TrialState.COMPLETE if trial.score is not None else optuna.trial.TrialState.FAIL
        study.add_trial(optuna.trial.create_trial(params=params, distributions=scale, value=trial.score, state=state))
    found = study.ask(scale).params
    return {key: choices[key][value] if key in choices else value for key, value in found.items()}


def falls_behind(earlier: Sequence[Sequence[float]], own: Sequence[float], maximise: bool = True) -> bool:
    """Tell whether a trial's best score so far is below the median of earlier trials' at the same moment.

    ``earlier`` and ``own`` are scores after each evaluation.
    """
    optuna = _optuna()
    pruner = optuna.pruners.MedianPruner(n_startup_trials=_TRIALS_BEFORE_PRUNING)
    study = optuna.create_study(pruner=pruner, direction="maximize" if maximise else "minimize")
    for scores in earlier:
        steps = dict(enumerate(scores, start=1))
        # the median is of the steps; the value only marks the trial as finished, and Optuna takes no NaN for it
        study.add_trial(optuna.trial.create_trial(value=0.0, intermediate_values=steps))
    trial = study.ask()
    for step, score in enumerate(own, start=1):
        trial.report(score, step)
    return bool(trial.should_prune())


def _distribution(optuna: Any, values: Any) -> Any:
    if isinstance(values, list):
        return optuna.distributions.CategoricalDistribution(range(len(values)))
    low, high, log = values["low"], values["high"], values.get("log", False)
    kind = "Int" if isinstance(low, int) and isinstance(high, int) else "Float"
    return getattr(optuna.distributions, f"{kind}Distribution")(low, high, log=log)
