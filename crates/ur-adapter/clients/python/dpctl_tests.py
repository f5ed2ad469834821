"""Runs the tests that dpctl brings along. Fails if one fails, or if few pass.

`dpctl_tests.py LEAST` demands that at least LEAST tests pass.
"""

import sys

import dpctl
import pytest

# Tests that cannot pass here, each with the reason.
DESELECTED = {
    "test_sycl_queue.py::test_cython_api": "it compiles a module, which takes Cython and a minute",
}


class Counter:
    """Counts how tests end."""

    def __init__(self):
        self.passed = self.skipped = self.failed = 0

    def pytest_collection_modifyitems(self, config, items):
        """Leaves out what cannot pass."""
        left_out = [it for it in items if any(it.nodeid.endswith(name) for name in DESELECTED)]
        assert len(left_out) == len(DESELECTED), "a test that is left out is not there any more"
        items[:] = [it for it in items if it not in left_out]
        config.hook.pytest_deselected(items=left_out)

    def pytest_runtest_logreport(self, report):
        """Counts a test when it has run, and when it was not begun."""
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
