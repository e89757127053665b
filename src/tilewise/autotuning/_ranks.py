"""Equal choices on all ranks of a distributed program.

Ranks agree through the key-value store of the default process group, not by a collective operation: a rank may meet a
key that others never see, and a collective would then wait forever. The first rank that asks decides for all.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from tilewise.autotuning._call_forms import Argument

_log = logging.getLogger(__name__)
_PREFIX = "tilewise"


def is_distributed() -> bool:
    """Return whether this process is one of several ranks; torch is not imported to find out."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return bool(distributed.get_world_size() > 1)


def agreed(subject: str, decide: Callable[[], str]) -> str:
    """Return a text on which all ranks agree: that of `decide` on the rank that asks first.

    Args:
        subject: identifies the decision, e.g. the kernel and the key.
        decide: decides; it runs on one rank, while the others wait.

    Raises:
        TimeoutError: the deciding rank did not answer within the timeout of the process group's store.
    """
    if not is_distributed():
        return decide()
    store, place = _store(), f"{_PREFIX}/{subject}"
    if store.add(f"{place}/claims", 1) == 1:
        try:
            answer = decide()
        except BaseException as e:
            store.set(place, f"!{type(e).__name__}: {e}")
            raise
        store.set(place, f"={answer}")
        return answer
    try:
        answer = store.get(place).decode()
    except Exception as e:  # the store's own error types are private
        raise TimeoutError(f"{subject}: the deciding rank did not answer: {e}") from e
    if answer.startswith("!"):
        _log.warning("%s: the deciding rank failed (%s); this rank decides by itself", subject, answer[1:])
        return decide()
    return str(answer[1:])


def _store() -> Argument:
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()  # PyTorch has no public name for it
