"""Set ``gemm-1``: matrix products of language models, squares, skinny and random products, edge sizes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from tilewise.collect._plan import Item
from tilewise.collect.problems._draw import draw, log_uniform, shuffled, unique
from tilewise.collect.problems._edges import edge_gemms
from tilewise.collect.problems._llm import projections
from tilewise.ops import GemmProblem, Problem

# Of 60 seeds, the one whose validation problems (by the holdout rule) are most like the rest in every label.
_SEED = "gemm-1-{}-50"
MAX_FLOPS = 1.5e12  # some 2 ms at the matrix units' usual rate
MAX_ELEMENTS = 2**29  # of one operand or the result
USUAL_FLOPS = 3e11  # above this, a drawn problem is kept with a probability that falls with its cost
TOKENS = (  # one draw per line for every projection: decoding, short prompts, long prompts
    (1, 1, 2, 3, 4, 7, 8, 16),
    (24, 32, 33, 48, 64, 96, 100, 128, 192, 256, 333, 512),
    (768, 1000, 1024, 1536, 2048, 3000, 4096, 5000, 8192, 10000, 16384, 20480),
)
_DRAWS = 1000  # per wanted problem; after so many, all problems that exist have come up
SQUARES = (
    128, 192, 256, 320, 384, 512, 640, 768, 896, 1000, 1024, 1280, 1536, 2000, 2048, 2560, 3000, 3072, 4096, 5120, 6144,
    8192,
)  # fmt: skip


def measurable(p: GemmProblem) -> bool:
    """Return whether a problem is small enough to measure with every kernel of a pool."""
    return p.flops <= MAX_FLOPS and max(p.M * p.K, p.K * p.N, p.M * p.N) <= MAX_ELEMENTS


def gemm_1() -> tuple[Item, ...]:
    """Generate the set in its order."""
    edges = (Item(problem, "edge") for problem in edge_gemms())
    forward = unique(
        chain(llm_items(_SEED), square_items(SQUARES), skinny_items(51, _SEED), random_items(80, _SEED), edges)
    )
    plain = [item for item in forward if item.origin.partition("/")[0] in ("square", "skinny", "random")]
    return shuffled(
        unique(chain(forward, llm_backward_items(35, _SEED), other_layouts(plain, 54, _SEED))), "gemm-1-order"
    )


def llm_items(seed: str) -> Iterator[Item]:
    """Yield every projection at three numbers of tokens; its weights are stored as (N, K), which is rcr.

    A `seed`, here and below, has a ``{}`` for the name of the draw.
    """
    g = random.Random(seed.format("llm"))
    for p in projections():
        for tokens in TOKENS:
            fitting = [q for q in (GemmProblem(m, p.N, p.K) for m in tokens) if measurable(q)]
            affordable = [q for q in fitting if is_affordable(q, g)]
            yield Item(g.choice(affordable or fitting[:1]), p.origin)


def llm_backward_items(count: int, seed: str) -> Iterator[Item]:
    """Yield `count` gradients of the input (``dy @ w``, rrr) and `count` of the weights (``dy.T @ x``, crr).

    Raises:
        ValueError: fewer than `count` exist.
    """
    g = random.Random(seed.format("backward"))
    kinds = (("dgrad", "rrr"), ("wgrad", "crr"))
    for name, layout in kinds:
        chosen: dict[Problem, Item] = {}
        for _ in range(_DRAWS * count):
            if len(chosen) == count:
                break
            p = g.choice(list(projections()))
            tokens = g.choice(TOKENS[2] if name == "wgrad" else TOKENS[1] + TOKENS[2])
            sizes = (tokens, p.K, p.N) if name == "dgrad" else (p.N, p.K, tokens)
            problem = GemmProblem(*sizes, layout)
            if measurable(problem) and is_affordable(problem, g):
                chosen.setdefault(problem, Item(problem, f"{p.origin}/{name}"))
        if len(chosen) < count:
            raise ValueError(f"{count} gradients ({name}) were asked for, and {len(chosen)} found: ask for fewer")
        yield from chosen.values()


def square_items(sizes: Iterable[int]) -> Iterator[Item]:
    """Yield products with ``M = N = K``."""
    for size in sizes:
        yield Item(GemmProblem(size, size, size), "square")


def skinny_items(count: int, seed: str) -> Iterator[Item]:
    """Yield a third each of products with a tiny M, a tiny N (both with a long K), and outer products (a short K)."""
    g = random.Random(seed.format("skinny"))
    third = count // 3

    def tiny(m: bool) -> GemmProblem:
        few, many = log_uniform(g, 1, 32), log_uniform(g, 64, 32768, 16)
        return GemmProblem(*((few, many) if m else (many, few)), log_uniform(g, 1024, 65536, 16))

    def outer() -> GemmProblem:
        return GemmProblem(log_uniform(g, 256, 16384, 8), log_uniform(g, 256, 16384, 16), log_uniform(g, 8, 128, 8))

    yield from draw(third, lambda: tiny(m=True), _keep(g), "skinny/rows")
    yield from draw(third, lambda: tiny(m=False), _keep(g), "skinny/columns")
    yield from draw(count - 2 * third, outer, _keep(g), "skinny/outer")


def random_items(count: int, seed: str) -> Iterator[Item]:
    """Yield products log-uniform in each size: multiples of 16, one in five of 8, one in five of 64."""
    g = random.Random(seed.format("random"))

    def make() -> GemmProblem:
        multiple = g.choice((16, 16, 16, 8, 64))
        m, n, k = (log_uniform(g, 16, 16384, multiple) for _ in range(3))
        return GemmProblem(m, n, k)

    yield from draw(count, make, _keep(g), "random")


def other_layouts(items: Sequence[Item], count: int, seed: str) -> Iterator[Item]:
    """Yield `count` of `items` again, in rrr, crr and ccr in turn."""
    chosen = random.Random(seed.format("layouts")).sample(items, count)
    for i, item in enumerate(chosen):
        p = item.problem
        assert isinstance(p, GemmProblem)
        yield Item(GemmProblem(p.M, p.N, p.K, ("rrr", "crr", "ccr")[i % 3]), item.origin)


def is_affordable(p: GemmProblem, generator: random.Random) -> bool:
    """Draw whether to keep a problem, with a probability that falls with its cost."""
    return generator.random() * p.flops <= USUAL_FLOPS


def _keep(generator: random.Random) -> Callable[[Problem], bool]:
    def keep(p: Problem) -> bool:
        return isinstance(p, GemmProblem) and measurable(p) and is_affordable(p, generator)

    return keep
