"""Search methods with a common signature: they score places of a space until the surrogate's budget is spent.

All are deterministic for a seed. `start` are kernels known to be good, such as the model's own favourites.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np

from tilewise.campaigns.search._space import Space
from tilewise.campaigns.search._surrogate import Surrogate
from tilewise.kernels import KernelBase
from tilewise.metrics import Floats, Ints

Method = Callable[[Space, Surrogate, Sequence[KernelBase], int], None]  # space, surrogate, start, seed

IDLE = 500  # consecutive proposals without a new kernel after which a space counts as exhausted
POPULATION = 40
CROSSOVER = 0.7  # probability of taking an axis from the mutant
STEP = (0.4, 1.0)  # range of the factor of a difference, drawn for each mutant
JUMP = 0.05  # probability of drawing an axis at random: rounding would otherwise make all kernels equal


def random(space: Space, surrogate: Surrogate, start: Sequence[KernelBase], seed: int) -> None:
    """Draw kernels at random: the baseline of the other methods."""
    rng = np.random.default_rng(seed)
    surrogate(start)
    idle = 0
    while idle < IDLE:
        known = len(surrogate.scores)
        surrogate([space.draw(rng) for _ in range(min(surrogate.left, POPULATION) or 1)])
        idle = 0 if len(surrogate.scores) > known else idle + POPULATION


def evolution(space: Space, surrogate: Surrogate, start: Sequence[KernelBase], seed: int) -> None:
    """Run differential evolution (Storn and Price, 1997: current-to-best/1/bin) over indices, rounded and repaired."""
    rng = np.random.default_rng(seed)
    kernels = [*start, *(space.draw(rng) for _ in range(POPULATION - len(start)))]
    scores = surrogate(kernels)
    places = np.array([_placed(space, k, rng) for k in kernels])
    idle = 0
    while idle < IDLE:
        known = len(surrogate.scores)
        if idle:  # the population has converged: redraw its worse half
            worse = np.argsort(scores, kind="stable")[: len(scores) // 2]
            scores[worse] = -np.inf
            proposed = {int(i): space.draw(rng) for i in worse}
        else:
            proposed = {i: _mutant(space, places, scores, i, rng) for i in range(len(kernels))}
        for (i, kernel), score in zip(proposed.items(), surrogate(list(proposed.values())), strict=True):
            if score >= scores[i]:
                places[i], scores[i] = _placed(space, kernel, rng), score
        idle = 0 if len(surrogate.scores) > known else idle + len(proposed)


def _placed(space: Space, kernel: KernelBase, rng: np.random.Generator) -> Ints:
    place = space.place(kernel)
    if place is None:  # a value lies on no axis: a random kernel takes its place
        place = space.place(space.draw(rng))
    assert place is not None
    return place


def _mutant(space: Space, places: Ints, scores: Floats, i: int, rng: np.random.Generator) -> KernelBase:
    shape, best = np.array(space.shape), places[int(scores.argmax())]
    a, b = places[rng.choice(len(places), 2, replace=False)]
    step = rng.uniform(*STEP)
    moved = places[i] + step * (best - places[i]) + step * (a - b)
    place = np.clip(np.rint(moved), 0, shape - 1).astype(np.int64)
    place = np.where(rng.random(len(shape)) < CROSSOVER, place, places[i])
    place = np.where(rng.random(len(shape)) < JUMP, rng.integers(shape), place)
    return repaired(space, place, places[i], rng)


def repaired(space: Space, place: Ints, legal: Ints, rng: np.random.Generator) -> KernelBase:
    """Return the kernel at `place`; if illegal, take axes in random order from a legal place until it is legal."""
    kernel, place = space.at(place), place.copy()
    for axis in rng.permutation(len(place)) if kernel is None else ():
        place[axis] = legal[axis]
        if (kernel := space.at(place)) is not None:
            break
    assert kernel is not None, "the place to repair from must be legal"
    return kernel


def tpe(space: Space, surrogate: Surrogate, start: Sequence[KernelBase], seed: int) -> None:
    """Run Optuna's tree-structured Parzen estimator over indices; an illegal proposal counts as its repaired kernel."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        # A joint estimator for all axes stays quick for hundreds of trials.
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=POPULATION, multivariate=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    ends = {f"axis_{i}": count - 1 for i, count in enumerate(space.shape)}
    surrogate(start)
    for kernel in start:
        if (place := space.place(kernel)) is not None:
            study.enqueue_trial(dict(zip(ends, place.tolist(), strict=True)))
    idle = 0
    while idle < IDLE:
        known = len(surrogate.scores)
        trial = study.ask()
        place = np.array([trial.suggest_int(name, 0, end) for name, end in ends.items()])
        legal = space.place(surrogate.best(1)[0][0]) if surrogate.scores else None
        if legal is None:
            legal = space.place(space.draw(rng))
        assert legal is not None
        study.tell(trial, float(surrogate([repaired(space, place, legal, rng)])[0]))
        idle = 0 if len(surrogate.scores) > known else idle + 1


METHODS: dict[str, Method] = {"random": random, "evolution": evolution, "tpe": tpe}
