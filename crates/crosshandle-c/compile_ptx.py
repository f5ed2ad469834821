"""Compiles the CUDA sources to the PTX files next to them.

The compiler is in the package nvidia-cuda-nvrtc-cu12 12.0.140. A newer compiler writes PTX that
older drivers refuse. No GPU is needed.
"""

import ctypes
import importlib.metadata
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEADER = Path(__file__).parent / "include" / "crosshandle.cuh"
SOURCES = [
    "benches/src/cuda/kernels/kernels.cu",
    "crates/conformance/kernels/device_signals.cu",
    "crates/crosshandle-store/src/contents/device_hash/kernels.cu",
    "crates/crosshandle/src/api/event/device/nodes.cu",
]
PACKAGE = "nvidia-cuda-nvrtc-cu12"


def checksum(source: bytes) -> int:
    """Returns the FNV-1a hash, which tests compare."""
    value = 0xCBF29CE484222325
    for byte in source:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def compile_to_ptx(nvrtc: ctypes.CDLL, source: Path) -> str:
    text, header = source.read_bytes(), HEADER.read_bytes()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    headers = (ctypes.c_char_p * 1)(header)
    names = (ctypes.c_char_p * 1)(HEADER.name.encode())
    name = source.name.encode()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 1, headers, names) == 0
    options = [b"--gpu-architecture=compute_70", b"--std=c++11"]
    array = (ctypes.c_char_p * len(options))(*options)
    failed = nvrtc.nvrtcCompileProgram(program, len(options), array)
    kind = "ProgramLog" if failed else "PTX"
    getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
    result = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{kind}")(program, result)
    if failed:
        raise SystemExit(result.value.decode())
    # The first lines name the compiler.
    ptx = result.value.decode().rstrip()
    lines = ptx[ptx.index(".version") :].splitlines()
    # Constants of headers are defined, although no kernel reads them.
    body = "\n".join(line for line in lines if not is_unused_constant(line, ptx))
    sources = source.name
    if HEADER.name.encode() in text:
        text += header
        sources += f" and {HEADER.name}"
    head = f"// Compiled by compile_ptx.py from {sources}: {checksum(text):016x}."
    return f"{head}\n\n{body}\n"


def is_unused_constant(line: str, ptx: str) -> bool:
    name = re.match(r"\.global .* (_ZN\w+)", line)
    return name is not None and ptx.count(name[1]) == 1


def main() -> None:
    files = importlib.metadata.files(PACKAGE) or []
    path = next(file.locate() for file in files if file.name.startswith("libnvrtc.so"))
    nvrtc = ctypes.CDLL(str(path))
    for source in SOURCES:
        source = ROOT / source
        source.with_suffix(".ptx").write_text(compile_to_ptx(nvrtc, source))


if __name__ == "__main__":
    main()
