"""Programs under a time limit: shares of the time, logs, a peer that is asked by lines, and GPU memory."""

import json
import os
import queue
import signal
import subprocess
import threading
import time


class Budget:
    """Divides the time that is left among the parts that are left, in proportion to their weights."""

    def __init__(self, end, weights):
        self.end = end
        self.weights = dict(weights)

    def deadline(self, part):
        """When a part has to end; it then counts as no longer left. What it leaves over is for the others."""
        now = time.monotonic()
        share = self.weights[part] / sum(self.weights.values())
        del self.weights[part]
        return now + share * max(0.0, self.end - now)


class Program:
    """A program in a process group of its own, with its output in the file `log`."""

    def __init__(self, command, log, folder, variables):
        self.log = log
        self.started = time.monotonic()
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **variables},
                start_new_session=True,
            )

    def age(self):
        """Seconds since its start."""
        return time.monotonic() - self.started

    def has_ended(self):
        return self.process.poll() is not None

    def wait(self, is_done, deadline):
        """Waits until `is_done()`; false if the program ends before, or at the deadline."""
        while not is_done():
            if self.has_ended():
                return bool(is_done())
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        return True

    def stop(self, patience):
        """Asks the program to end, and kills it after `patience` seconds."""
        if not self.has_ended():
            self.process.terminate()
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                pass
        kill_group(self.process)

    def text(self):
        return self.log.read_text(errors="replace")


class Peer:
    """A process that answers a line with a line of JSON, and waits meanwhile."""

    def __init__(self, command, log, variables):
        self.log = log
        self.started = time.monotonic()
        self.answers = queue.Queue()
        with open(log, "wb") as errors:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **variables},
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put(None)

    def ask(self, line, deadline):
        """The answer to a line; None if there is none until the deadline, or the process ended."""
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except OSError:
            return None
        return self.answer(deadline)

    def answer(self, deadline):
        try:
            answer = self.answers.get(timeout=max(0.0, deadline - time.monotonic()))
            return answer and json.loads(answer)
        except (queue.Empty, ValueError):
            return None

    def stop(self):
        kill_group(self.process)


def kill_group(process):
    """Kills a process and those that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()


class Memory:
    """The most memory in use on a GPU in MiB, above what was in use at the start; None without `nvidia-smi`.

    It is that of the whole GPU: in a container, `nvidia-smi` does not tell whose memory it is.
    """

    def __init__(self, gpu):
        self.query = gpu and ["nvidia-smi", "-i", gpu, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        self.peak = None

    def __enter__(self):
        self.poll = None
        first = ask(self.query) if self.query else None
        if first and first.strip().isdigit():
            self.before = int(first)
            poll = [*self.query, "-lms", "200"]
            self.poll = subprocess.Popen(poll, stdout=subprocess.PIPE, text=True, start_new_session=True)
            self.thread = threading.Thread(target=self.read, daemon=True)
            self.thread.start()
        return self

    def read(self):
        for line in self.poll.stdout:
            if line.strip().isdigit():
                self.peak = max(self.peak or 0, int(line) - self.before)

    def __exit__(self, *_):
        if self.poll:
            kill_group(self.poll)
            self.thread.join(1)


def ask(command, seconds=30):
    """What a program prints; None if it is missing, fails or hangs."""
    try:
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout if ran.returncode == 0 else None
