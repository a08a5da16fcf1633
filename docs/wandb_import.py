"""Writes runs of a generated program to Weights & Biases.

    pip install wandb
    python wandb_import.py PROJECT runs/first runs/second

With WANDB_MODE=offline, files are written to ./wandb, which `wandb sync` uploads. Each call creates new runs,
so it is for runs that have ended. Tested with wandb 0.31.0.
"""

import json
import sys
from pathlib import Path

import wandb

# Fields of both logs that are not metrics.
NOT_METRICS = {"split", "epoch", "step", "examples", "weights", "seconds", "data_seconds", "checkpoint_seconds", "flops_complete"}
# Fields of steps.jsonl with values by name, and what stands before the names.
BY_NAME = {"losses": "step/", "learning_rates": "step/learning_rate/"}


def lines(path):
    """The objects of a file of JSON lines; none if it is missing."""
    return map(json.loads, path.read_text().splitlines()) if path.exists() else []


def known(prefix, values):
    """Values by name; "NaN" and "inf" are numbers, and null is unknown or, for metrics, not finite."""
    return {prefix + name: float(value) for name, value in values.items() if value is not None}


def metrics(line):
    return {name: value for name, value in line.items() if name not in NOT_METRICS | BY_NAME.keys()}


def points(folder):
    """Metrics by step: `step/loss` of updates, `validation/loss` of epochs."""
    by_step = {}
    for line in lines(folder / "steps.jsonl"):
        point = by_step.setdefault(line["step"], {"epoch": line["epoch"]})
        for field, prefix in BY_NAME.items():
            point.update(known(prefix, line[field]))
        # The norm of the gradients, throughput, the wait for data and memory.
        point.update(known("step/", metrics(line)))
    for line in lines(folder / "metrics.jsonl"):
        point = by_step.setdefault(line["step"], {"epoch": line["epoch"]})
        point.update(known(f"{line['split']}/", metrics(line)))
    return sorted(by_step.items())


def import_run(project, folder):
    record = json.loads((folder / "run.json").read_text())
    options = (record["options"] or {}).items()
    config = {name.lstrip("-"): option["value"] for name, option in options}
    config |= {"replicas": record["replicas"], "commit": (record["git"] or {}).get("commit")}
    with wandb.init(project=project, name=folder.resolve().name, config=config) as run:
        for step, point in points(folder):
            run.log(point, step=step)
        curves = folder / "curves.svg"
        if curves.exists():
            run.save(str(curves), base_path=str(folder), policy="now")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    for name in sys.argv[2:]:
        import_run(sys.argv[1], Path(name))
