#!/usr/bin/env python3
"""Tests and measures generated programs on a machine with a CUDA GPU, in turn with PyTorch on the same work.

`cargo bench -p kiln-tests --bench gpu -- cuda FOLDER` gathers programs, data and these scripts in a folder, on
any machine. There, on the machine with the GPU:

    python3 run.py                          # at most 10 minutes; the table, results.json and results.logs/
    python3 run.py --only digits,unit       # some of the parts
    python3 run.py --dry-run                # a few steps each, on what the programs were built for
    python3 run.py --table results.json     # the table of earlier results

Each part has a share of the time; what exceeds it is killed and reported with what it had reached. Kernels are
kept for this run only, so that first starts find none. Python 3.8 suffices; with PyTorch its columns are filled.
Without a GPU nothing is measured, and nothing fails. Exit status: 1 if a test or a program failed.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import sys
import tempfile
import time
from typing import List, NamedTuple

import records
from processes import Budget, Memory, Peer, Program, ask
from table import table

HERE = pathlib.Path(__file__).resolve().parent


class Work(NamedTuple):
    """A training: a project of the folder, and its options. `peer` are options of `torch_peers.py`."""

    name: str
    project: str
    batch: int
    options: List[str] = []
    peer: List[str] = []
    # The share of the time.
    weight: float = 2.0


IMAGES = ["--data-dir", str(HERE / "images")]
# The default learning rate of the example is for a small model.
DECODER = ["--data-dir", "data", "--learning-rate", "3e-4"]
WORK = [
    Work("digits", "digits", 16, ["--data-dir", "data"], weight=4.0),
    Work("CNN of 28x28", "cnn", 128, IMAGES),
    Work("CNN of 28x28, large batch", "cnn", 1024, IMAGES, weight=1.5),
    Work("dense", "dense", 256, IMAGES, weight=1.5),
    Work("dense, large batch", "dense", 1024, IMAGES, weight=1.5),
    Work("CycleGAN of 16x16", "cyclegan", 4, weight=3.0),
    Work("decoder, float32", "decoder", 8, [*DECODER, "--precision", "float32"], weight=3.0),
    Work(
        "decoder, bfloat16",
        "decoder",
        8,
        [*DECODER, "--precision", "bfloat16"],
        ["--precision", "bfloat16"],
        3.0,
    ),
]
# The test executables of the folder.
TESTS = ["unit", "contract"]
# The whole training of the digits.
EPOCHS, ACCURACY = 5, 0.9
# The most of a work's time that its starts may take; the rest is for PyTorch, and for rates.
FIRST_START, LATER_START = 0.6, 0.1
# Threads that share the GPU in tests.
TEST_THREADS = 4
WITHOUT_GPU = "no such GPU was found"
SOFTWARE_GPU = os.environ.get("CUBECL_WGPU_DEFAULT_DEVICE") == "Cpu"


class Amounts(NamedTuple):
    """How much is measured: rounds, seconds a side and round, and seconds between two lines of a log."""

    rounds: int = 3
    seconds: float = 2.0
    interval: float = 0.25
    # Steps of a first and of a later start, and lines before those that count.
    first: int = 2
    later: int = 8
    skipped: int = 2
    context: int = 1024


FEW = Amounts(rounds=1, seconds=0.0, interval=0.0, first=1, later=2, skipped=1, context=64)


def main():
    args = arguments()
    if args.table:
        print(table(json.loads(args.table.read_text())))
        return 0
    manifest = read_json(HERE / "manifest.json")
    gpu = find_gpu(manifest)
    if gpu is None and not args.dry_run:
        print("no CUDA GPU here, as nvidia-smi lists none: nothing was measured")
        return 0
    if manifest is None:
        sys.exit(f"error: {HERE / 'manifest.json'} is missing: `cargo bench -p kiln-tests --bench gpu` gathers it")
    args.output = args.output.resolve()
    bench = Bench(args, gpu, manifest)
    bench.measure()
    print(table(bench.results))
    print(f"written: {args.output} and {bench.logs}")
    return 1 if bench.results["failures"] else 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="time limit of everything together")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="PART,...", help="projects or tests")
    parser.add_argument("--dry-run", action="store_true", help="a few steps each, on any hardware")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("results.json"), metavar="FILE")
    parser.add_argument("--table", type=pathlib.Path, metavar="FILE", help="print the table of earlier results")
    return parser.parse_args()


def find_gpu(manifest):
    """The GPU that CUDA lists first, or one in software if it is asked for; None if there is none."""
    if SOFTWARE_GPU and manifest and manifest["features"] in ("vulkan", "wgpu"):
        return {"name": "in software", "index": None}
    index = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    query = ["--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    listed = ask(["nvidia-smi", "-i", index, *query]) if index else None
    if not listed or listed.count(",") != 2:
        return None
    name, driver, memory = (part.strip() for part in listed.split(","))
    cuda = re.search(r"CUDA Version: ([\d.]+)", ask(["nvidia-smi"]) or "")
    return {"name": name, "driver": driver, "memory": memory, "cuda": cuda and cuda.group(1), "index": index}


def find_torch(is_dry):
    """The version of PyTorch and its device; None, with a message, if it cannot be used."""
    script = "import json, torch; print(json.dumps([torch.__version__, torch.cuda.is_available()]))"
    asked = ask([sys.executable, "-c", script], 120)
    version, has_gpu = json.loads(asked.splitlines()[-1]) if asked else (None, False)
    if version and (has_gpu or is_dry):
        return {"version": version, "device": "cuda" if has_gpu else "cpu"}
    return None


class Bench:
    """All parts, and their results, which are written after each part."""

    def __init__(self, args, gpu, manifest):
        # The time limit is that of everything, also of the search for PyTorch.
        self.began = time.monotonic()
        self.args, self.gpu, self.manifest = args, gpu, manifest
        self.amounts = FEW if args.dry_run else Amounts()
        self.logs = args.output.with_suffix(".logs")
        self.logs.mkdir(parents=True, exist_ok=True)
        self.torch = find_torch(args.dry_run)
        self.not_measured = []
        self.results = {
            "machine": {"gpu": gpu, "cores": os.cpu_count(), "system": platform.platform()},
            "date": datetime.date.today().isoformat(),
            "kiln": manifest,
            "torch": self.torch,
            "is_dry": args.dry_run,
            "work": [],
            "training": None,
            "tests": [],
            # Pairs: what, and why.
            "not_measured": self.not_measured,
            "failures": [],
        }

    def measure(self):
        """Runs the parts that are asked for and that the folder has, tests last: they take what is left."""
        parts = self.parts()
        if self.torch is None:
            self.skip("PyTorch", "there is none with CUDA here")
        if not (self.gpu and self.gpu["index"]):
            self.skip("memory of the GPU", "nvidia-smi lists no such GPU")
        budget = Budget(self.began + 60 * self.args.minutes, {name: weight for name, weight, _ in parts})
        with tempfile.TemporaryDirectory() as scratch:
            self.scratch = pathlib.Path(scratch)
            for name, _, run in parts:
                run(budget.deadline(name))
                self.args.output.write_text(json.dumps(self.results, indent=1) + "\n")

    def parts(self):
        """Name, weight and function of each part."""
        parts = []
        for work in WORK:
            if self.has(work.name, work.project, f"{work.project}/program"):
                parts.append((work.name, work.weight, lambda deadline, work=work: self.work(work, deadline)))
        if self.has("training of the digits", "digits", "digits/program"):
            parts.append(("training", 1.0, self.train))
        for name in TESTS:
            if self.has(f"{name} tests", name, f"digits/{name}"):
                parts.append((name, 2.0, lambda deadline, name=name: self.test(name, deadline)))
        return parts

    def has(self, name, part, program):
        """Whether the program of a part is there and wanted; notes why not."""
        if self.args.only and part not in self.args.only:
            self.skip(name, f"not among --only {','.join(self.args.only)}")
        elif not (HERE / program).is_file():
            self.skip(name, f"there is no {program}")
        else:
            return True
        return False

    def skip(self, what, why):
        self.not_measured.append([what, why])

    def fail(self, why):
        if why not in self.results["failures"]:
            print(f"failed: {why}", flush=True)
            self.results["failures"].append(why)

    def log(self, name):
        return self.logs / f"{slug(name)}.log"

    def work(self, work, deadline):
        """A first and a later start, then the program and PyTorch in turn."""
        kiln = Kiln(self, work)
        now = time.monotonic()
        result = {"work": work.name, "batch": kiln.batch, "rounds": []}
        self.results["work"].append(result)
        has_peer = self.torch is not None
        first = now + FIRST_START * (deadline - now)
        result["first"] = kiln.start("first start", self.amounts.first, first)
        result["records"] = records.summary(kiln.kept())
        result["later"] = kiln.start("later start", self.amounts.later, first + LATER_START * (deadline - now))
        result["kernels"], result["parameters"] = kiln.kernels, kiln.parameters
        peer = Torch(self, work, kiln.batch, deadline) if has_peer else None
        try:
            if peer:
                result["torch"] = peer.result
                self.compare_parameters(kiln, peer)
            self.rounds(result, kiln, peer, deadline)
        finally:
            if peer:
                peer.stop()
        result["memory"] = kiln.memory

    def rounds(self, result, kiln, peer, deadline):
        """Rounds of all sides, while there is time for another one."""
        lasted = 0.0
        while len(result["rounds"]) < self.amounts.rounds and time.monotonic() + lasted < deadline:
            began = time.monotonic()
            rates = {"kiln": kiln.rate(deadline)}
            for mode in peer.modes if peer else []:
                rates[mode] = peer.rate(mode, deadline)
            result["rounds"].append(rates)
            lasted = time.monotonic() - began
        if not any(rates["kiln"] for rates in result["rounds"]):
            self.skip(f"{result['work']}, milliseconds", "no time was left for it")
        medians = [f"{side} {statistics.median(of):,.0f}/s" for side, of in sides(result["rounds"]).items()]
        print(f"{result['work']}: {', '.join(medians) or 'no rates'}", flush=True)

    def compare_parameters(self, kiln, peer):
        """Other networks are not compared."""
        of_kiln, of_torch = kiln.parameters, peer.result.get("parameters")
        if of_kiln and of_torch and of_kiln != of_torch:
            self.fail(f"{kiln.work.name}: the program has {of_kiln} parameters, and PyTorch {of_torch}")
            peer.modes = []

    def train(self, deadline):
        """A whole training of the digits, with validations and a test; a few steps in a dry run."""
        epochs = 1 if self.args.dry_run else EPOCHS
        kiln = Kiln(self, WORK[0])
        options = ["--epochs", epochs, "--replicas", "1", "--batch-size", kiln.batch, *kiln.work.options]
        options += ["--steps-per-epoch", "4"] if self.args.dry_run else []
        program = kiln.program("training", options)
        ended = program.wait(program.has_ended, deadline)
        program.stop(5)
        lines = read_lines(kiln.runs / "metrics.jsonl")
        train = [line["seconds"] for line in lines if line["split"] == "train"]
        test = [line["accuracy"] for line in lines if line["split"] == "test"]
        self.results["training"] = {
            "epochs": epochs,
            "seconds": program.age() if ended else None,
            "epoch_seconds": train,
            "accuracy": test[0] if test else None,
        }
        if ended and not test:
            self.fail(f"training of the digits: {last_line(program.text())}")
        elif test and test[0] < ACCURACY and not self.args.dry_run:
            self.fail(f"training of the digits: a test accuracy of {test[0]:.3f}, below {ACCURACY}")
        print(f"training of the digits: {len(train)} of {epochs} epochs, test accuracy {test}", flush=True)

    def test(self, name, deadline):
        """Runs a test executable on the GPU."""
        command = [HERE / "digits" / name, "--test-threads", TEST_THREADS]
        command += ["picture"] if self.args.dry_run else []
        variables = {**self.variables("tests"), "TRAINING_DATA_DIR": str(HERE / "digits/data")}
        program = Program(command, self.logs / f"{name}.log", self.scratch, variables)
        ended = program.wait(program.has_ended, deadline)
        program.stop(0)
        text = program.text()
        result = {
            "tests": name,
            "passed": len(re.findall(r"^test .* \.\.\. ok$", text, re.MULTILINE)),
            "failed": re.findall(r"^test (\S+).* \.\.\. FAILED$", text, re.MULTILINE),
            "of": sum(int(count) for count in re.findall(r"^running (\d+) tests?$", text, re.MULTILINE)),
            "seconds": program.age(),
            "has_ended": ended,
        }
        self.results["tests"].append(result)
        for test in result["failed"]:
            self.fail(f"{name}: {test}")
        if ended and program.process.returncode != 0 and not result["failed"]:
            self.fail(f"{name}: {last_line(text)}")
        print(f"{name}: {result['passed']} passed, {len(result['failed'])} failed of {result['of']}", flush=True)

    def variables(self, name):
        """Where a program keeps compiled kernels by default, and the driver what it compiles."""
        cache = self.scratch / "caches" / slug(name)
        return {"XDG_CACHE_HOME": str(cache), "CUDA_CACHE_PATH": str(cache / "driver")}


class Kiln:
    """The program of a work. All its runs keep kernels in one folder, which is empty at first."""

    def __init__(self, bench, work):
        self.bench, self.work = bench, work
        is_large = bench.args.dry_run and work.project == "decoder"
        self.batch = 1 if is_large else work.batch
        self.runs = None
        self.kernels = self.parameters = self.memory = self.step = None

    def program(self, run, options):
        """Starts the program in its project's folder, into a new output folder."""
        name = f"{self.work.name} {run}"
        folder, variables = HERE / self.work.project, self.bench.variables(self.work.name)
        self.runs = pathlib.Path(tempfile.mkdtemp(dir=self.bench.scratch))
        options = [*options, "--output-dir", self.runs]
        if self.bench.manifest["features"] != "flex":
            options += ["--kernel-cache", self.kept()]
        return Program([folder / "program", *options], self.bench.log(name), folder, variables)

    def kept(self):
        """The folder of its kernels."""
        return pathlib.Path(self.bench.variables(self.work.name)["XDG_CACHE_HOME"]) / "kernels"

    def run(self, run, log_every, is_done, deadline):
        """Trains until `is_done(lines of the log, program)`, or the deadline; false if the program failed."""
        options = ["train", "--replicas", "1", "--batch-size", self.batch, "--epochs", "1"]
        options += ["--steps-per-epoch", "1000000", "--log-every", log_every, *self.work.options]
        if self.work.project == "decoder":
            options += ["--context", self.bench.amounts.context]
        gpu = self.bench.gpu
        with Memory(gpu and gpu["index"]) as memory:
            program = self.program(run, options)
            try:
                log = self.runs / "steps.jsonl"
                program.wait(lambda: is_done(read_lines(log), program), deadline)
            finally:
                crashed = program.has_ended()
                program.stop(0)
        return self.note(run, program, memory.peak, crashed)

    def note(self, run, program, memory, crashed):
        """Takes from the output of a run what does not depend on its speed."""
        text = program.text()
        parameters = re.search(r"([\d,]+) parameters in ", text)
        if parameters:
            self.parameters = int(parameters.group(1).replace(",", ""))
        kernels = re.search(r"first step after [\d.]+ s: (.*?)(?:, kept in|;|$)", text, re.MULTILINE)
        if kernels and self.kernels is None:
            self.kernels = kernels.group(1)
        if memory is not None:
            self.memory = max(self.memory or 0, memory)
        if crashed:
            self.bench.fail(f"{self.work.name}, {run}: {last_line(text)}")
            return False
        if WITHOUT_GPU in text and not self.bench.args.dry_run:
            self.bench.fail(f"{self.work.name}, {run}: the program found no GPU and ran on the CPU")
            return False
        return True

    def start(self, run, steps, deadline):
        """Seconds from the start of the program to the end of its first step, and what was reached without it."""
        first, rates = [], []

        def is_done(lines, program):
            if lines and not first:
                first.append(program.age())
            rates[:] = [line["examples_per_second"] for line in lines[1:]]
            return len(lines) >= steps

        began = time.monotonic()
        if not self.run(run, 1, is_done, deadline):
            return {"seconds": None, "waited": None, "reached": None}
        waited = time.monotonic() - began
        if rates:
            self.step = self.batch / statistics.median(rates)
        took = f"{first[0]:.1f} s" if first else f"not within {waited:.0f} s"
        print(f"{self.work.name}: {run} {took}", flush=True)
        reached = last_line(self.bench.log(f"{self.work.name} {run}").read_text(errors="replace"))
        return {"seconds": first[0] if first else None, "waited": waited, "reached": None if first else reached}

    def rate(self, deadline):
        """The median of the examples per second of intervals of a log; None if it was not reached."""
        if self.step is None:
            return None
        amounts, counted = self.bench.amounts, []
        log_every = min(1000, max(1, round(amounts.interval / self.step)))
        since = []

        def is_done(lines, program):
            counted[:] = [line["examples_per_second"] for line in lines[amounts.skipped :]]
            if len(lines) >= amounts.skipped and not since:
                since.append(program.age())
            return bool(counted) and program.age() - since[0] >= amounts.seconds

        is_valid = self.run("speed", log_every, is_done, deadline)
        return statistics.median(counted) if counted and is_valid else None


class Torch:
    """PyTorch on a work, in a process that waits while the program runs."""

    def __init__(self, bench, work, batch, deadline):
        self.amounts = bench.amounts
        device = bench.torch["device"]
        command = [sys.executable, HERE / "torch_peers.py", work.project, batch, "--device", device, *work.peer]
        command += ["--context", bench.amounts.context]
        log = bench.log(f"{work.name} PyTorch")
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(bench.scratch / "inductor")}
        self.peer = Peer(command, log, caches)
        self.result = self.peer.answer(deadline) or {}
        self.modes = self.result.get("modes", [])
        self.result["first"] = time.monotonic() - self.peer.started if self.modes else None
        self.result["memory"] = {}
        if not self.modes:
            print(f"{work.name}: PyTorch does not start: {last_line(log.read_text(errors='replace'))}", flush=True)

    def rate(self, mode, deadline):
        """Examples per second; None if PyTorch fails or does not end before the deadline."""
        answer = self.peer.ask(f"{mode} {self.amounts.seconds}", deadline)
        if answer is None or "error" in answer:
            why = answer["error"] if answer else "no answer in the time that was left"
            self.result.setdefault("errors", {})[mode] = why
            # A late answer would be taken for the next one.
            self.modes = [other for other in self.modes if other != mode] if answer else []
            return None
        self.result["memory"][mode] = answer["memory"]
        if mode == "compiled":
            self.result.setdefault("compiled", answer["first_step"])
        return answer["rate"]

    def stop(self):
        self.peer.stop()


def slug(name):
    """A name for files."""
    return re.sub(r"\W+", "-", name).lower()


def sides(rounds):
    """The rates of each side, without what was not reached."""
    names = {side: None for rates in rounds for side in rates}
    all_rates = {side: [rates[side] for rates in rounds if rates.get(side)] for side in names}
    return {side: rates for side, rates in all_rates.items() if rates}


def read_json(path):
    try:
        return json.loads(path.read_text())
    except OSError:
        return None


def read_lines(path):
    """The lines of a log in JSON; the last one may be half written."""
    try:
        text = path.read_text()
    except OSError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1]]


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


if __name__ == "__main__":
    sys.exit(main())
