"""Promotion: publish models, judge them with ``gate``, move ``@production``, and roll back automatically.

Takes model folders, measurements and rules; gives versions, judgements and ``promotion.json``. Uses ``gate``,
``evaluate`` and the registry's history. Members load lazily, and MLflow when a function is called. Used by ``cli`` and
benchmarks; the dispatcher never imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.registry.promotion._auto_rollback import RollbackVerdict as RollbackVerdict
    from tilewise.registry.promotion._auto_rollback import roll_back_if_slower as roll_back_if_slower
    from tilewise.registry.promotion._judge import judge as judge
    from tilewise.registry.promotion._judgement import Judgement as Judgement
    from tilewise.registry.promotion._judgement import PromotionRules as PromotionRules
    from tilewise.registry.promotion._override import Override as Override
    from tilewise.registry.promotion._promote import Promotion as Promotion
    from tilewise.registry.promotion._promote import leave_unpublished as leave_unpublished
    from tilewise.registry.promotion._promote import promote as promote
    from tilewise.registry.promotion._publish import publish as publish
    from tilewise.registry.promotion._standing import find_standing as find_standing

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_auto_rollback": (
            "RollbackVerdict",
            "roll_back_if_slower",
        ),
        "_judge": ("judge",),
        "_judgement": (
            "Judgement",
            "PromotionRules",
        ),
        "_override": ("Override",),
        "_promote": (
            "Promotion",
            "leave_unpublished",
            "promote",
        ),
        "_publish": ("publish",),
        "_standing": ("find_standing",),
    },
)
