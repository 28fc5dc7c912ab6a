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
    """Counts and prints results; may be used by several threads."""

    def __init__(self):
        self.passed = 0
        self.failed = 0
        self.skipped = 0
        self._lock = threading.Lock()

    def test(self, name, work):
        """Runs work() as the test `name`. Its return value, if any, is a remark for the line."""
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
        skipped = f"; {self.skipped} skipped" if self.skipped else ""
        print(f"\ntest result: {word}. {self.passed} passed; {self.failed} failed; 0 ignored{skipped}")
        return 0 if word == "ok" else 1
