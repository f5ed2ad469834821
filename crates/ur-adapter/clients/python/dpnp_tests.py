"""Runs tests that dpnp brings along, over any adapter: a sample, or all. Fails if one fails that is not expected to.

`dpnp_tests.py EVERY` runs each EVERY-th test, always the same ones.
"""

import sys

import dpctl
import pytest

# Tests that fail over the stock OpenCL adapter too, each with the reason.
EXPECTED = {}


class Sample:
    """Leaves out the other tests, and counts how these end."""

    def __init__(self, every):
        self.every = every
        self.passed = self.skipped = 0
        self.failed = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        """Keeps each so-and-so-many-th test of all."""
        kept = items[:: self.every]
        config.hook.pytest_deselected(items=[it for n, it in enumerate(items) if n % self.every])
        items[:] = kept

    def pytest_runtest_logreport(self, report):
        """Counts a test when it has run, and when it was not begun."""
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
