"""A ring of steps in shared memory, and sets of warps that take turns at it.

One warp loads: it waits until a place of the ring is empty. The warps that multiply wait until it is ready, multiply
asynchronously, and give it back one step later.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait


@gluon.jit
def new_ring(SLOTS: gl.constexpr, READERS: gl.constexpr):
    """Return the barriers of so many slots, of loads and of the READERS that give a slot back."""
    ready = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SLOTS):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(empty.index(i), count=READERS)
    return ready, empty


@gluon.jit
def new_turns():
    """Return the barriers by which two sets of warps take turns."""
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(turn.index(0), count=1)
    mbarrier.init(turn.index(1), count=1)
    return turn


@gluon.jit
def wait_turn(turn, own, TURN: gl.constexpr, TURNS: gl.constexpr):
    """Wait until the tile before the `own`-th one of this set is multiplied.

    Barriers tell odd rounds of the ring from even ones only.
    """
    if TURNS > 1:
        mbarrier.wait(turn.index(TURN), (own + TURN + 1) & 1)


@gluon.jit
def pass_turn(turn, TURN: gl.constexpr, TURNS: gl.constexpr):
    """Let the other set of warps multiply."""
    if TURNS > 1:
        mbarrier.arrive(turn.index(1 - TURN))


@gluon.jit
def product_of(
    a_ring, b_ring, ready, empty, acc, count, steps, TURNED_A: gl.constexpr, TURNED_B: gl.constexpr,
):  # fmt: skip
    """Return the sum over a tile's steps, `count` of which the ring had before; `acc` has its shape."""
    STAGES: gl.constexpr = a_ring.shape[0]
    for step in range(steps):
        at = count % STAGES
        mbarrier.wait(ready.index(at), count // STAGES & 1)
        a = a_ring.index(at).permute((1, 0)) if TURNED_A else a_ring.index(at)
        b = b_ring.index(at).permute((1, 0)) if TURNED_B else b_ring.index(at)
        product = warpgroup_mma(a, b, acc, use_acc=step > 0, is_async=True)
        acc = warpgroup_mma_wait(1, deps=(product,))  # the step before is done
        mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), pred=step > 0)
        count += 1
    acc = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), pred=steps > 0)
    return acc
