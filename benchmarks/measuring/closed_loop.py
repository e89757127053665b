"""One iteration of the closed loop: requests for unseen shapes are recorded, measured and learnt.

python -m benchmarks.measuring.closed_loop begin [--family depthwise] [--data data] [--budget 60] [--trees 100]
python -m tilewise.collect build/closed_loop/plan.json build/closed_loop/measured.parquet    on an H200; or `simulate`
python -m benchmarks.measuring.closed_loop simulate [--data data]                            by the recorded tables
python -m benchmarks.measuring.closed_loop end [--data data]
python -m benchmarks.measuring.closed_loop page

``begin`` trains a model without a family of problems, and so without kernels that serve only this family. A synthetic
trace then requests two thirds of the family, and as many known problems: calls follow Zipf's law, in random order.
Planning by value chooses the measurements within the budget. ``end`` learns from them in three ways: retraining from
scratch, and two warm starts. The recorded tables, which hold every kernel of every problem, judge all models: on the
traced shapes, on similar shapes without a measurement, and on the rest of the holdout.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.results import RESULTS, load, save
from tilewise.arch import load_arch
from tilewise.campaigns.plan import PlanSettings, propose_by_value
from tilewise.collect import Plan, Timing, collect_with_engine, load_plan
from tilewise.collect.engines import replay_engine
from tilewise.data import group_keys, holdout_mask, problems_of, read_measurements
from tilewise.data.quality import prepare_measurements
from tilewise.dispatch.logs import Request, count_requests, request_log_text
from tilewise.errors import TilewiseError
from tilewise.evaluate import evaluate
from tilewise.files import write_text
from tilewise.gate import HoldoutEfficiencies, Thresholds, decide_promotion
from tilewise.kernels import load_pool
from tilewise.markdown import fill, table
from tilewise.metrics import Floats
from tilewise.model import TrainedModel, load_artefact, write_artefact
from tilewise.ops import OPS, Problem, Target
from tilewise.train import (
    BaseModel,
    ModelSettings,
    TrainSettings,
    TuneSettings,
    continue_training,
    git_revision,
    pool_of,
    train,
)

TARGET = Target.parse("grouped_conv_forward_bf16_sm90")
FOLDER = Path("build/closed_loop")
PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"
HOLDOUT = 0.18
RUN_ID = "closed-loop-1"
MOST_CALLS = 100_000  # of the most requested shape
FAMILIES: dict[str, Callable[[pd.DataFrame], pd.Series]] = {
    "depthwise": lambda f: (f["G"] > 1) & (f["C"] == f["G"]),
    "grouped": lambda f: (f["G"] > 1) & (f["C"] > f["G"]),
    "large_filter": lambda f: f["Y"] >= 5,
}


@dataclass(frozen=True)
class Scene:
    """The recorded table, and the part of each problem in the iteration.

    Attributes:
        frame: all recorded rows.
        seen: training rows of the first model, of shape (rows,).
        traced: problems of the family in the trace.
        known: training problems of the first model in the trace.
        alike: problems of the family outside the trace and the training set.
        elsewhere: problems of the holdout outside the family.
    """

    frame: pd.DataFrame
    seen: pd.Series
    traced: tuple[Problem, ...]
    known: tuple[Problem, ...]
    alike: tuple[Problem, ...]
    elsewhere: tuple[Problem, ...]

    @classmethod
    def set(cls, frame: pd.DataFrame, family: str, seed: int) -> Scene:
        """Return the parts of a table's problems."""
        rng = np.random.default_rng(seed)
        inside = FAMILIES[family](frame)
        held = pd.Series(holdout_mask(TARGET.op, group_keys(TARGET.op, frame), HOLDOUT), index=frame.index)
        new, known = (_shuffled(frame[mask & ~held], rng) for mask in (inside, ~inside))
        count = round(len(new) * 2 / 3)
        alike = (*new[count:], *problems_of(frame[inside & held], TARGET))
        return cls(frame, ~inside, new[:count], known[:count], alike, problems_of(frame[~inside & held], TARGET))

    def calls(self, seed: int) -> dict[Problem, int]:
        """Return a synthetic trace."""
        return zipf((*self.traced, *self.known), np.random.default_rng([seed, 1]))


def _shuffled(rows: pd.DataFrame, rng: np.random.Generator) -> tuple[Problem, ...]:
    problems = problems_of(rows, TARGET)
    return tuple(problems[i] for i in rng.permutation(len(problems)))


def zipf(problems: Sequence[Problem], rng: np.random.Generator) -> dict[Problem, int]:
    """Return the calls of each problem: in random order, the n-th problem has 1/n of the calls of the first."""
    return {problems[i]: max(MOST_CALLS // n, 1) for n, i in enumerate(rng.permutation(len(problems)), 1)}


def fitted(frame: pd.DataFrame, folder: Path, trees: int, threads: int, base: Path | None = None) -> TrainedModel:
    """Train a model on some rows and write it to `folder`; `base` is continued if given."""
    model = ModelSettings(n_estimators=trees, warm_estimators=round(trees * 0.15))
    settings = TrainSettings(model, TuneSettings(n_trials=0), n_splits=2, threads=threads, holdout_fraction=HOLDOUT)
    if base is None:
        result = train(frame, TARGET, pool_of(frame, TARGET), load_arch(TARGET.arch), settings)
    else:
        result = continue_training(frame, TARGET, BaseModel.load(base), settings)
    write_artefact(folder, result.parts)
    return load_artefact(folder)


def begin(scene: Scene, budget_s: float, trees: int, threads: int, seed: int) -> dict[str, Any]:
    """Train the first model, write a trace and a plan; return the plan's figures."""
    frame = scene.frame[scene.seen]
    model = fitted(frame, FOLDER / "before", trees, threads)
    calls = scene.calls(seed)
    asked = Counter({Request(TARGET.name, problem, "model"): count for problem, count in calls.items()})
    write_text(FOLDER / "requests.jsonl", request_log_text(asked))
    whole = Plan(TARGET, load_arch(TARGET.arch), load_pool(TARGET), (), Timing(), RUN_ID)
    settings = PlanSettings(budget_s=budget_s, seed=seed, threads=threads)
    proposal = propose_by_value(calls, model, frame, whole, settings, holdout_fraction=HOLDOUT)
    write_text(FOLDER / "plan.json", proposal.plan.dumps())
    figures = {
        "planned": len(proposal.plan.items),
        "pairs": sum(len(i.kernels or ()) for i in proposal.plan.items),
        "could_be": len(proposal.could_be.calls),
        "measuring_s": float(proposal.stakes.seconds.sum()),
        "expected_saved_min": float(proposal.stakes.saved_s.sum()) / 60,
    }
    save(FOLDER / "begun.json", figures)
    return figures


def simulate(data: Path) -> None:
    """Answer the plan from the recorded tables instead of a GPU."""
    collect_with_engine(
        load_plan(FOLDER / "plan.json"), FOLDER / "measured.parquet", replay_engine(data), [0], lambda *_: None
    )


def end(scene: Scene, trees: int, threads: int) -> dict[str, Any]:
    """Learn from the measurements in three ways, and judge all models."""
    measured = read_measurements(FOLDER / "measured.parquet", TARGET)
    learn = prepare_measurements(pd.concat([scene.frame[scene.seen], measured], ignore_index=True), TARGET).frame
    before, base = load_artefact(FOLDER / "before"), FOLDER / "before"
    models = {
        "before": before,
        "anew": fitted(learn, FOLDER / "anew", trees, threads),
        "warm, all rows": fitted(learn, FOLDER / "warm_all", trees, threads, base),
        "warm, new rows": fitted(measured, FOLDER / "warm_new", trees, threads, base),
    }
    calls = count_requests(FOLDER / "requests.jsonl", TARGET)
    planned = set(problems_of(measured, TARGET))
    parts = {
        "traced": scene.traced,
        "measured": tuple(p for p in scene.traced if p in planned),
        "alike": scene.alike,
        "elsewhere": scene.elsewhere,
    }
    judged = {name: Judged.of(model, scene.frame) for name, model in models.items()}
    return {
        "machine": sorted(set(measured["hw_device"])),
        "run": sorted(set(measured["libraries"])),
        "revision": git_revision(Path.cwd()),
        "trees": trees,
        "planned": load(FOLDER / "begun.json"),
        "problems": {name: len(problems) for name, problems in parts.items()},
        "models": {
            name: {part: _figures(j.efficiency(problems)) for part, problems in parts.items()}
            | {
                "pool": len(models[name].pool),
                "gpu_min": j.minutes(calls),
                "gate": _gate(scene.elsewhere, judged["before"], j),
            }
            for name, j in judged.items()
        },
        "oracle_min": judged["before"].minutes(calls, oracle=True),
    }


@dataclass(frozen=True)
class Judged:
    """A model's result on each problem of the recorded table; 0 where it supports no kernel."""

    by_problem: Mapping[Problem, tuple[float, float]]  # efficiency, TFLOPS of the oracle

    @classmethod
    def of(cls, model: TrainedModel, frame: pd.DataFrame) -> Judged:
        """Return the result of the model's selections."""
        rows = evaluate(model, frame).per_problem
        kind, names = OPS[TARGET.op], list(OPS[TARGET.op].column_names())
        problems = (kind.from_dict(row) for row in rows[names].to_dict("records"))
        figures = zip(rows["efficiency"].tolist(), rows["oracle_tflops"].tolist(), strict=True)
        return cls(dict(zip(problems, figures, strict=True)))

    def efficiency(self, problems: Sequence[Problem]) -> Floats:
        """Return efficiencies in [0, 1], of shape (problems,)."""
        return np.array([self.by_problem.get(p, (0.0, 0.0))[0] for p in problems])

    def minutes(self, calls: Mapping[Problem, int], *, oracle: bool = False) -> float:
        """Return the GPU minutes of the calls that a kernel is selected for."""
        found = [(p, n, *self.by_problem[p]) for p, n in calls.items() if p in self.by_problem]
        return sum(n * p.flops / (tflops * (1 if oracle else e)) / 1e12 for p, n, e, tflops in found) / 60


def _figures(efficiency: Floats) -> dict[str, float]:
    return {"mean": float(efficiency.mean()), "p10": float(np.percentile(efficiency, 10))}


def _gate(problems: Sequence[Problem], before: Judged, after: Judged) -> str:
    """Return the gate's verdict on replacing one model by the other, on these problems."""
    named = [p.to_dict() for p in problems]
    efficiencies = HoldoutEfficiencies(named, after.efficiency(problems), before.efficiency(problems))
    decision = decide_promotion(efficiencies, Thresholds())
    return "yes" if decision.promote else "; ".join(decision.reasons)


def recovered(models: Mapping[str, Any], name: str, part: str) -> float:
    """Return the share of the first model's lost mean efficiency that another model recovers."""
    lost = 1 - models["before"][part]["mean"]
    return float(1 - (1 - models[name][part]["mean"]) / lost)


_LABELS = {"anew": "retrained"}  # of models, by key in the result files


def page_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return one row per family and model: mean / P10 by part, in percent."""
    header = [
        "unseen",
        "trees",
        "model",
        "traced",
        "recovered",
        "measured",
        "alike",
        "recovered",
        "elsewhere",
        "GPU time",
        "gate",
    ]
    rows = []
    for result in results:
        models = result["models"]
        could_be = models["before"]["gpu_min"] - result["oracle_min"]
        for name, of in models.items():
            shown = {p: f"{100 * of[p]['mean']:.2f} / {100 * of[p]['p10']:.2f}" for p in result["problems"]}
            parts = [shown["traced"], "", shown["measured"], shown["alike"], "", shown["elsewhere"], "", ""]
            if name != "before":
                parts[1], parts[4] = (f"{100 * recovered(models, name, p):.0f} %" for p in ("traced", "alike"))
                parts[6] = f"{100 * (models['before']['gpu_min'] - of['gpu_min']) / could_be:.0f} %"
                parts[7] = "yes" if of["gate"] == "yes" else "no"
            rows.append([result["family"], str(result["trees"]), _LABELS.get(name, name), *parts])
    return table(header, rows, words=3)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measuring.closed_loop", description=__doc__)
    parser.add_argument("verb", choices=("begin", "simulate", "end", "page"))
    parser.add_argument("--family", choices=FAMILIES, default="depthwise")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of measuring")
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", help="name of the result file; default: the family")
    args = parser.parse_args(argv)
    try:
        if args.verb == "page":
            found = [load(p) for p in sorted(RESULTS.glob("closed_loop_*.json"))]
            write_text(PAGE, fill(PAGE.read_text(), {"turn": page_table(found)}))
        elif args.verb == "simulate":
            simulate(args.data)
        else:
            scene = Scene.set(read_measurements(args.data, TARGET), args.family, args.seed)
            if args.verb == "begin":
                print(begin(scene, args.budget, args.trees, args.threads, args.seed))
            else:
                result = {"family": args.family} | end(scene, args.trees, args.threads)
                save(RESULTS / f"closed_loop_{args.name or args.family}.json", result)
                print(page_table([result]))
    except TilewiseError as e:
        print(f"closed_loop: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
