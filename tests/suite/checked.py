"""The suite under `adverb run --check`: each finding is one of those that are known of the suite, with its reason."""

import collections
import json
import os
import tempfile

import suite
from harness.process import Process
from harness.report import Failed

# A line each: DEVICE TEST FINDING, with `*` for any device. Findings of lines that begin with `perhaps` depend on how fast the machine is.
LIST = os.path.join(suite.HERE, "findings.txt")
LIMIT_S = 480


def known():
    """What is expected: (device, test, finding), and whether it must be found."""
    with open(LIST) as file:
        lines = [line.partition("#")[0].split() for line in file]
    return {tuple(words[-3:]): len(words) == 3 for words in lines if words}


def findings(path):
    """The findings of each test, in the file of a run."""
    found, test = collections.defaultdict(list), "outside of tests"
    with open(path) as file:
        for line in map(json.loads, file):
            test = line.get("test", test)
            if "finding" in line:
                found[test, line["finding"]].append(line["text"])
    return found


def run(adverb, device, folder, names):
    """Runs the suite, and compares what is found."""
    with tempfile.TemporaryDirectory(prefix="adverb-suite-check-") as own:
        path = os.path.join(own, "findings")
        options = ["--check", "--check-format", "json", "--check-file", path]
        with Process([adverb, "run", "--device", device, *options, "--", *suite.driver(device, folder, names)]) as process:
            counts, ended = collections.Counter(), set()
            for result in suite.results(process, LIMIT_S):
                counts[result["event"]] += 1
                if result["event"] == "passed":
                    ended.add(result["test"])
            if counts["failed"] or not counts["complete"]:
                raise Failed(f"with checks, {suite.say(counts)}:\n{process.describe()}")
        found = findings(path)
    wanted = {(test, finding): must for (of, test, finding), must in known().items() if of in (device, "*")}
    assert wanted, f"no finding is known on {device}"
    wrong = [f"{device} {test} {finding}  # {texts[0]}" for (test, finding), texts in found.items() if (test, finding) not in wanted]
    missing = [f"{device} {test} {finding}" for (test, finding), must in wanted.items() if must and test in ended and (test, finding) not in found]
    if wrong or missing:
        raise Failed("\n".join(["findings that are not known:", *wrong, "findings that are missing:", *missing]))
    return f"{sum(map(len, found.values()))} findings, all of them known; {suite.say(counts)}"
