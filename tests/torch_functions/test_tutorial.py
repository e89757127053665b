"""The tutorial of a network runs as it stands, on a small network in fp16, with made-up predictions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tilewise.torch as ours
from tilewise.kernels.triton.programs import interpreted
from torch_functions.predicting import predicting

PAGE = Path(__file__).parents[2] / "docs" / "tutorial-network.md"
SMALL = {
    "WIDTH, BATCH, SIZE = 64, 32, 112": "WIDTH, BATCH, SIZE = 16, 1, 8",
    "torch.bfloat16": "torch.float16",
    '"cuda"': '"cpu"',
}


@pytest.mark.skipif(not interpreted(), reason="a GPU is there: the interpreter's kernels are not chosen")
def test_the_tutorial_of_a_network() -> None:
    """Run the steps that need no GPU. Step 4 compiles for one; step 5 loads a model of `make repro`."""
    text = PAGE.read_text()
    for written, small in SMALL.items():
        assert written in text
        text = text.replace(written, small)
    network, optimise, check, timing, serve = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    space: dict[str, Any] = {"__name__": "tutorial"}
    exec(network, space)
    with ours.use(*predicting()):
        for step in (optimise, check):
            exec(step, space)
    report = str(space["report"])
    assert "5 of 5 layers are replaced" in report
    shown = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    assert _without_figures(shown) == _without_figures(report + "\n")
    for step in (timing, serve):
        compile(step, PAGE.name, "exec")


def _without_figures(report: str) -> list[str]:
    return re.sub(r"\d+\.\d+%?", "0", report).splitlines()
