"""Promotion: publish models, judge them with ``gate``, move ``@production``, and roll back automatically.

Takes model folders, measurements and rules; gives versions, judgements and ``promotion.json``. Uses ``gate``,
``evaluate`` and the registry's history, and loads MLflow when a function is called. Used by ``cli`` and benchmarks;
the dispatcher never imports it.
"""

from __future__ import annotations

from tilewise.registry.promotion._auto_rollback import RollbackVerdict, roll_back_if_slower
from tilewise.registry.promotion._judge import judge
from tilewise.registry.promotion._judgement import Judgement, PromotionRules
from tilewise.registry.promotion._override import Override
from tilewise.registry.promotion._promote import Promotion, leave_unpublished, promote
from tilewise.registry.promotion._publish import publish

__all__ = [
    "Judgement",
    "Override",
    "Promotion",
    "PromotionRules",
    "RollbackVerdict",
    "judge",
    "leave_unpublished",
    "promote",
    "publish",
    "roll_back_if_slower",
]
