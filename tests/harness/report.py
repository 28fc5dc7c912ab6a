"""One line per test and a closing line, in the words of `cargo test`, so that one reader understands both."""

import sys
import threading
import time
import traceback


class Failed(Exception):
    """A test did not do what it must; the text says what happened instead."""


def _indented(text):
    return "".join(f"    {line}\n" for line in text.splitlines())


class Report:
    """Counts and prints results; may be used by several threads.

    As many tests as `second_chances` says may fail once: two processes that need each other within the time limits of programs that are not ours
    cannot always have them where the host takes processors away. What went wrong is printed, and their names again at the end: a name that comes
    up time and again is a bug.
    """

    def __init__(self, second_chances=0):
        self.passed = 0
        self.failed = 0
        self.skipped = 0
        self._second_chances = second_chances
        self._unsteady = []
        self._lock = threading.Lock()

    def test(self, name, work):
        """Runs work() as the test `name`. Its return value, if any, is a remark for the line."""
        problem, remark, seconds = self._attempt(work)
        if problem is not None and self._has_another_chance(name, seconds, problem):
            problem, remark, seconds = self._attempt(work)
        if problem is None:
            self.result(name, "passed", seconds, remark)
        else:
            self.result(name, "failed", seconds, problem)

    @staticmethod
    def _attempt(work):
        """What has gone wrong, if anything; a remark; the time in seconds."""
        start = time.monotonic()
        problem, remark = None, ""
        try:
            remark = work() or ""
        except Failed as failure:
            problem = str(failure)
        except Exception:
            problem = traceback.format_exc()
        return problem, remark, time.monotonic() - start

    def _has_another_chance(self, name, seconds, problem):
        with self._lock:
            if len(self._unsteady) >= self._second_chances:
                return False
            self._unsteady.append(name)
            print(f"unsteady {name} failed ({seconds:.1f} s) and runs once more:")
            print(_indented(problem), end="", flush=True)
        return True

    def result(self, name, how, seconds, text=""):
        """Prints and counts one result: passed or skipped with a remark, or failed with what has happened."""
        word = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}[how]
        remark = f", {text}" if text and how != "failed" else ""
        with self._lock:
            self.passed += how == "passed"
            self.failed += how == "failed"
            self.skipped += how == "skipped"
            print(f"test {name} ... {word} ({seconds:.1f} s{remark})")
            if how == "failed":
                print(_indented(text), end="")
            sys.stdout.flush()

    def close(self):
        """Prints the closing line; the exit status. What is skipped is no pass."""
        word = "FAILED" if self.failed or not self.passed else "ok"
        if self._unsteady:
            print("\nunsteady: these failed once and ran again:", *self._unsteady, sep="\n    ")
        skipped = f"; {self.skipped} skipped" if self.skipped else ""
        print(f"\ntest result: {word}. {self.passed} passed; {self.failed} failed; 0 ignored{skipped}")
        return 0 if word == "ok" else 1
