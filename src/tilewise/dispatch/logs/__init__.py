"""Logs of a dispatcher: the decision log (reasons of selections) and the request log (counts of problems asked for).

Takes decisions and requests and appends them to JSONL files in the background; reads the files back, and finds the
model that made a logged decision. Imports NumPy and the standard library, and the registry only to find a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.dispatch.logs._decision_log import DecisionLine as DecisionLine
    from tilewise.dispatch.logs._decision_log import DecisionLog as DecisionLog
    from tilewise.dispatch.logs._decision_log import describe_decision as describe_decision
    from tilewise.dispatch.logs._decision_log import read_decision_log as read_decision_log
    from tilewise.dispatch.logs._replay import find_deciding_model as find_deciding_model
    from tilewise.dispatch.logs._replay import same_ranking as same_ranking
    from tilewise.dispatch.logs._request_log import Request as Request
    from tilewise.dispatch.logs._request_log import RequestLog as RequestLog
    from tilewise.dispatch.logs._request_log import count_requests as count_requests
    from tilewise.dispatch.logs._request_log import read_request_log as read_request_log
    from tilewise.dispatch.logs._request_log import request_log_text as request_log_text

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_decision_log": (
            "DecisionLine",
            "DecisionLog",
            "describe_decision",
            "read_decision_log",
        ),
        "_replay": (
            "find_deciding_model",
            "same_ranking",
        ),
        "_request_log": (
            "Request",
            "RequestLog",
            "count_requests",
            "read_request_log",
            "request_log_text",
        ),
    },
)
