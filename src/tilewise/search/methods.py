"""The search methods behind one signature: walk a space, ask the surrogate, until it raises that the budget is spent.

All are deterministic for a seed. `start` are kernels known to be good, such as the model's own favourites.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewise.metrics import Ints
from tilewise.search.space import Space
from tilewise.search.surrogate import Surrogate

Method = Callable[[Space, Surrogate, Sequence[Any], int], None]  # space, surrogate, start, seed

IDLE = 500  # proposals in a row that bring nothing new, after which a space counts as exhausted
POPULATION = 40
CROSSOVER = 0.7  # chance of each axis to be taken from the mutant
STEP = (0.4, 1.0)  # of the difference of two that is added to a third, drawn anew for each mutant
JUMP = 0.05  # chance of each axis to be drawn at random: rounding would else make all alike


def random(space: Space, surrogate: Surrogate, start: Sequence[Any], seed: int) -> None:
    """Draw after draw: what the others must beat."""
    rng = np.random.default_rng(seed)
    surrogate(start)
    idle = 0
    while idle < IDLE:
        known = len(surrogate.scores)
        surrogate([space.draw(rng) for _ in range(min(surrogate.left, POPULATION) or 1)])
        idle = 0 if len(surrogate.scores) > known else idle + POPULATION


def evolution(space: Space, surrogate: Surrogate, start: Sequence[Any], seed: int) -> None:
    """Differential evolution (Storn and Price, 1997: rand-to-best/1/bin) over indices, rounded.

    A mutant that is illegal is made again from others, at most a few times; then a random kernel takes its place.
    """
    rng = np.random.default_rng(seed)
    kernels = list(start) + [space.draw(rng) for _ in range(POPULATION - len(start))]
    scores = surrogate(kernels)
    places = np.array([_placed(space, k, rng) for k in kernels])
    idle = 0
    while idle < IDLE:
        known = len(surrogate.scores)
        mutants = [_mutant(space, places, scores, i, rng) for i in range(len(kernels))]
        for i, (mutant, score) in enumerate(zip(mutants, surrogate(mutants), strict=True)):
            if score >= scores[i]:
                places[i], scores[i] = _placed(space, mutant, rng), score
        idle = 0 if len(surrogate.scores) > known else idle + POPULATION


def _placed(space: Space, kernel: Any, rng: np.random.Generator) -> Ints:
    place = space.place(kernel)
    if place is None:  # a value of it is on no axis: stand in for it
        place = space.place(space.draw(rng))
    assert place is not None
    return place


def _mutant(space: Space, places: Ints, scores: np.ndarray, i: int, rng: np.random.Generator, tries: int = 10) -> Any:
    shape, best = np.array(space.shape), places[int(scores.argmax())]
    for _ in range(tries):
        a, b = places[rng.choice(len(places), 2, replace=False)]
        step = rng.uniform(*STEP)
        moved = places[i] + step * (best - places[i]) + step * (a - b)
        place = np.clip(np.rint(moved), 0, shape - 1).astype(np.int64)
        place = np.where(rng.random(len(shape)) < CROSSOVER, place, places[i])
        place = np.where(rng.random(len(shape)) < JUMP, rng.integers(shape), place)
        kernel = space.at(place)
        if kernel is not None:
            return kernel
    return space.draw(rng)


def tpe(space: Space, surrogate: Surrogate, start: Sequence[Any], seed: int) -> None:
    """Optuna's tree-structured Parzen estimator over indices; illegal proposals are told as failed trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=POPULATION)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    names = [f"axis_{i}" for i in range(len(space.shape))]
    for kernel in start:
        if (place := space.place(kernel)) is not None:
            study.enqueue_trial(dict(zip(names, place.tolist(), strict=True)))
    surrogate(start)
    idle = 0
    while idle < IDLE:
        known = len(surrogate.scores)
        trial = study.ask()
        place = np.array([trial.suggest_int(n, 0, count - 1) for n, count in zip(names, space.shape, strict=True)])
        kernel = space.at(place)
        if kernel is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, float(surrogate([kernel])[0]))
        idle = 0 if len(surrogate.scores) > known else idle + 1


METHODS: dict[str, Method] = {"random": random, "evolution": evolution, "tpe": tpe}
