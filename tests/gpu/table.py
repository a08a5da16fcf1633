"""The table of results: text that is Markdown, too."""

import statistics

HEADER = [
    "",
    "batch",
    "Kiln ms",
    "eager ms",
    "compiled ms",
    "eager ms, no TF32",
    "Kiln / eager",
    "Kiln / compiled",
    "first start s",
    "later start s",
    "eager start s",
    "compiled start s",
    "Kiln MiB",
    "eager MiB",
]


def table(results):
    """Machine and versions; a row for each work; then the training, tests, and what went wrong."""
    parts = [heading(results)]
    if results["work"]:
        parts.append(aligned([HEADER, *(row(work) for work in results["work"])]))
        parts.append(LEGEND)
    parts.append("\n".join(f"- {line}" for line in remarks(results)))
    return "\n\n".join(part for part in parts if part)


LEGEND = (
    "Milliseconds of a step of the program, of PyTorch (eager, compiled, and eager without TF32, which CubeCL may use "
    "as well), and ratios of examples per second, all medians over rounds. Starts last until the end of the first "
    "step: with no kernels kept, with those of the first start, and of PyTorch. MiB: most in use on the GPU, and "
    "reserved by PyTorch, which trains on one batch in memory."
)


def heading(results):
    machine, kiln, torch = results["machine"], results["kiln"], results["torch"]
    gpu = machine["gpu"]
    facts = [gpu["name"]] if gpu else ["no GPU"]
    for name, key in [("driver", "driver"), ("CUDA", "cuda")]:
        if gpu and gpu.get(key):
            facts.append(f"{name} {gpu[key]}")
    facts.append(f"{machine['cores']} CPU cores")
    tuned = "" if kiln.get("tuned", True) else ", not tuned"
    facts.append(f"Kiln {kiln['commit']} with {kiln['features']}{tuned}")
    facts.append(f"PyTorch {torch['version']}" if torch else "no PyTorch")
    facts.append(results["date"])
    dry = "Dry run, not a measurement. " if results["is_dry"] else ""
    return f"{dry}{', '.join(facts)}."


def row(work):
    rounds, torch, batch = work["rounds"], work.get("torch", {}), work["batch"]
    of_torch = torch.get("first")
    compiled = torch.get("compiled")
    steps = [milliseconds(batch, rounds, side) for side in ("kiln", "eager", "compiled", "strict")]
    return [
        work["work"],
        shown(batch),
        *steps,
        ratio(rounds, "eager"),
        ratio(rounds, "compiled"),
        start(work["first"]),
        start(work["later"]),
        shown(of_torch),
        shown(of_torch + compiled if of_torch and compiled else None),
        shown(work["memory"]),
        shown(torch.get("memory", {}).get("eager")),
    ]


def milliseconds(batch, rounds, side):
    """Of a step, by the median of the rates of all rounds."""
    rates = [rates[side] for rates in rounds if rates.get(side)]
    return shown(1e3 * batch / statistics.median(rates) if rates else None)


def ratio(rounds, other):
    """The median over rounds, in each of which the machine is about as fast for both."""
    ratios = [rates["kiln"] / rates[other] for rates in rounds if rates.get("kiln") and rates.get(other)]
    return f"{statistics.median(ratios):.2f}" if ratios else ""


def start(one):
    """Seconds, or how long it was waited for in vain."""
    if one["seconds"] is None and one["waited"] is not None:
        return f"> {shown(one['waited'])}"
    return shown(one["seconds"])


def shown(value):
    """Three digits; empty if not measured."""
    if value is None:
        return ""
    if isinstance(value, int) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def remarks(results):
    for work in results["work"]:
        if work.get("kernels"):
            yield f"{work['work']}: {work['kernels']} at the first start"
        if work.get("records"):
            yield f"{work['work']}: {work['records']}, by CubeCL's records of the first start"
        for start, name in [(work["first"], "first"), (work["later"], "later")]:
            if start["reached"]:
                waited = f"{shown(start['waited'])} s: {start['reached']}"
                yield f"{work['work']}: no step at the {name} start within {waited}"
        for mode, why in work.get("torch", {}).get("errors", {}).items():
            yield f"{work['work']}: no figure of PyTorch {mode}: {why}"
    training = results["training"]
    if training:
        yield f"digits, {training['epochs']} epochs: {describe_training(training)}"
    for tests in results["tests"]:
        stopped = "" if tests["has_ended"] else f", stopped after {shown(tests['seconds'])} s"
        counts = f"{tests['passed']} passed, {len(tests['failed'])} failed of {tests['of']}"
        yield f"{tests['tests']} tests: {counts}{stopped}"
    for what, why in results.get("not_measured", []):
        yield f"not measured: {what}: {why}"
    for failure in results["failures"]:
        yield f"failed: {failure}"


def describe_training(training):
    if training["seconds"] is None:
        return f"stopped after {len(training['epoch_seconds'])} epochs"
    accuracy = training["accuracy"]
    return f"{shown(training['seconds'])} s" + (f", test accuracy {accuracy:.3f}" if accuracy is not None else "")


def aligned(rows):
    """A Markdown table in columns of equal width."""
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths)) + " |" for cells in rows]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
