"""Runs all of dpnp's own tests or a sample, over any adapter. Fails if a test fails unexpectedly.

`dpnp_tests.py EVERY` runs every EVERY-th test. The selection is always the same.
"""

import sys

import dpctl
import pytest

# Tests that also fail with the stock OpenCL adapter, each with the reason.
EXPECTED = {}


class Sample:
    """Deselects all tests outside the sample, and counts the results."""

    def __init__(self, every):
        self.every = every
        self.passed = self.skipped = 0
        self.failed = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        """Keeps every `every`-th test."""
        kept = items[:: self.every]
        config.hook.pytest_deselected(items=[it for n, it in enumerate(items) if n % self.every])
        items[:] = kept

    def pytest_runtest_logreport(self, report):
        """Counts a test after it has run or was skipped."""
        if report.failed:
            self.failed.append(report.nodeid.rpartition("tests/")[2])
        self.passed += report.when == "call" and report.passed
        self.skipped += report.skipped


def main():
    """Runs the sample."""
    device = dpctl.select_default_device()
    print(f"{device.backend} {device.name}, {device.driver_version}", flush=True)
    sample = Sample(int(sys.argv[1]))
    arguments = ["-q", "-p", "no:cacheprovider", "--pyargs", "dpnp.tests", *sys.argv[2:]]
    pytest.main(arguments, plugins=[sample])
    unexpected = [name for name in sample.failed if name not in EXPECTED]
    print(f"{sample.passed} passed, {len(sample.failed)} failed, {sample.skipped} skipped")
    for name in unexpected:
        print(f"failed: {name}")
    assert sample.passed, "nothing ran"
    sys.exit(bool(unexpected))


if __name__ == "__main__":
    main()
