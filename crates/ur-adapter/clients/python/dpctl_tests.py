"""Runs dpctl's own tests. Fails if a test fails, or if too few pass.

`dpctl_tests.py LEAST` requires at least LEAST passed tests.
"""

import sys

import dpctl
import pytest


class Counter:
    """Counts the results of tests."""

    def __init__(self):
        self.passed = self.skipped = self.failed = 0

    def pytest_runtest_logreport(self, report):
        """Counts a test after it has run or was skipped."""
        self.failed += report.failed
        self.passed += report.when == "call" and report.passed
        self.skipped += report.skipped


def main():
    """Runs all tests of the package."""
    device = dpctl.SyclDevice()
    print(f"{device.backend} {device.name}")
    assert device.backend == dpctl.backend_type.opencl
    counter = Counter()
    arguments = ["-q", "-p", "no:cacheprovider", "--pyargs", "dpctl.tests"]
    status = pytest.main(arguments, plugins=[counter])
    print(f"{counter.passed} passed, {counter.failed} failed, {counter.skipped} skipped")
    least = int(sys.argv[1])
    assert counter.passed >= least, f"fewer than {least} passed"
    sys.exit(int(status))


if __name__ == "__main__":
    main()
