"""Runs oneMKL's SYCL libraries over any adapter, and compares their results with NumPy's.

The libraries contain precompiled kernels. dpnp calls them for products of matrices and vectors,
Fourier transforms, linear algebra and random numbers.
"""

import sys
from pathlib import Path

import dpctl
import dpnp
import numpy

# Maximum error for each element type, relative to the largest value.
TOLERANCES = {
    numpy.float32: 1e-4,
    numpy.float64: 1e-11,
    numpy.complex64: 1e-4,
    numpy.complex128: 1e-11,
}
# Lengths of transforms: a power of two, a product of small primes, and a prime.
LENGTHS = (1024, 1000, 1009)
# Libraries that must be loaded at the end.
LIBRARIES = ("blas", "dft", "lapack", "rng")


class Checker:
    """Compares results, and counts wrong ones."""

    def __init__(self):
        self.right = 0
        self.wrong = []

    def check(self, what, found, wanted, tolerance):
        """Compares a dpnp array with a NumPy array."""
        found, wanted = dpnp.asnumpy(found), numpy.asarray(wanted)
        scale = max(float(numpy.max(numpy.abs(wanted))), 1e-30)
        if found.shape == wanted.shape and numpy.max(numpy.abs(found - wanted)) <= tolerance * scale:
            self.right += 1
        else:
            self.wrong.append(what)


def random(generator, dtype, *shape):
    """Returns an array of random numbers for both libraries."""
    values = generator.standard_normal(shape)
    if numpy.issubdtype(dtype, numpy.complexfloating):
        values = values + 1j * generator.standard_normal(shape)
    values = values.astype(dtype)
    return dpnp.asarray(values), values


def check_products(checker, generator, dtype, tolerance):
    """Checks `gemm`, `gemv` and `dot`."""
    ours, theirs = random(generator, dtype, 300, 200)
    other, other_values = random(generator, dtype, 200, 250)
    # Repeated, so that products follow each other in the queue.
    for _ in range(3):
        product = dpnp.matmul(ours, other)
    checker.check(f"gemm {dtype.__name__}", product, theirs @ other_values, tolerance)
    vector, values = random(generator, dtype, 200)
    checker.check(f"gemv {dtype.__name__}", dpnp.matmul(ours, vector), theirs @ values, tolerance)
    long, long_values = random(generator, dtype, 100_000)
    wanted = numpy.dot(long_values, long_values)
    checker.check(f"dot {dtype.__name__}", dpnp.dot(long, long), wanted, tolerance)
    wanted = numpy.vdot(long_values, long_values)
    checker.check(f"vdot {dtype.__name__}", dpnp.vdot(long, long), wanted, tolerance)


def check_transforms(checker, generator, dtype, tolerance):
    """Checks Fourier transforms of one and two dimensions, and their inverses."""
    for length in LENGTHS:
        ours, theirs = random(generator, dtype, length)
        there = dpnp.fft.fft(ours)
        checker.check(f"fft {length} {dtype.__name__}", there, numpy.fft.fft(theirs), tolerance)
        checker.check(f"ifft {length} {dtype.__name__}", dpnp.fft.ifft(there), theirs, tolerance)
    ours, theirs = random(generator, dtype, 64, 128)
    checker.check(f"fft2 {dtype.__name__}", dpnp.fft.fft2(ours), numpy.fft.fft2(theirs), tolerance)


def check_algebra(checker, generator, dtype, tolerance):
    """Checks the factors, eigenvalues and solutions of a positive matrix."""
    _, values = random(generator, dtype, 150, 150)
    values = (values @ values.conj().T + 150 * numpy.eye(150)).astype(dtype)
    ours = dpnp.asarray(values)
    name = dtype.__name__
    wanted = numpy.linalg.eigvalsh(values)
    checker.check(f"eigvalsh {name}", dpnp.linalg.eigvalsh(ours), wanted, tolerance)
    right = values[:, 0].copy()
    solution = dpnp.linalg.solve(ours, dpnp.asarray(right))
    checker.check(f"solve {name}", solution, numpy.linalg.solve(values, right), tolerance)
    wanted = numpy.linalg.cholesky(values)
    checker.check(f"cholesky {name}", dpnp.linalg.cholesky(ours), wanted, tolerance)
    wanted = numpy.linalg.svd(values)[1]
    checker.check(f"svd {name}", dpnp.linalg.svd(ours)[1], wanted, tolerance)
    left, upper = dpnp.linalg.qr(ours)
    checker.check(f"qr {name}", dpnp.matmul(left, upper), values, tolerance)


def check_random(checker):
    """Checks the mean and deviation of normal numbers."""
    dpnp.random.seed(7)
    numbers = dpnp.random.normal(size=100_000)
    found = dpnp.asarray([dpnp.mean(numbers), dpnp.std(numbers)])
    checker.check("normal numbers", found, [0.0, 1.0], 0.02)


def main():
    """Runs all checks."""
    device = dpctl.select_default_device()
    print(f"{device.name}, backend {device.backend}", flush=True)
    generator, checker = numpy.random.default_rng(1), Checker()
    for dtype, tolerance in TOLERANCES.items():
        check_products(checker, generator, dtype, tolerance)
        check_transforms(checker, generator, dtype, tolerance)
        check_algebra(checker, generator, dtype, tolerance)
    check_random(checker)
    maps = Path("/proc/self/maps").read_text()
    missing = [name for name in LIBRARIES if f"libmkl_sycl_{name}" not in maps]
    for name in missing:
        print(f"not loaded: oneMKL's SYCL library '{name}'")
    for what in checker.wrong:
        print(f"wrong: {what}")
    print(f"{checker.right} right, {len(checker.wrong)} wrong")
    return 1 if checker.wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
