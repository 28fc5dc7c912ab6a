"""One line per test and a closing line, in the words of `cargo test`, so that one reader understands both."""

import sys
import threading
import time
import traceback


class Failed(Exception):
    """A test did not do what it must; the text says what happened instead."""


class Report:
    """Counts and prints results; may be used by several threads."""

    def __init__(self):
        self.passed = 0
        self.failed = 0
        self._lock = threading.Lock()

    def test(self, name, work):
        """Runs work() as the test `name`. Its return value, if any, is a remark for the line."""
        start = time.monotonic()
        try:
            remark, problem = work() or "", None
        except Failed as failure:
            problem = str(failure)
        except Exception:
            problem = traceback.format_exc()
        seconds = time.monotonic() - start
        with self._lock:
            if problem is None:
                self.passed += 1
                print(f"test {name} ... ok ({seconds:.1f} s{remark and ', ' + remark})")
            else:
                self.failed += 1
                print(f"test {name} ... FAILED ({seconds:.1f} s)")
                print("".join(f"    {line}\n" for line in problem.splitlines()), end="")
            sys.stdout.flush()

    def close(self):
        """Prints the closing line; the exit status."""
        word = "FAILED" if self.failed or not self.passed else "ok"
        print(f"\ntest result: {word}. {self.passed} passed; {self.failed} failed; 0 ignored")
        return 0 if word == "ok" else 1
