"""Compiles kernels.cu to kernels.ptx.

The compiler is in the package nvidia-cuda-nvrtc-cu12 12.0.140. A newer compiler writes PTX that
older drivers refuse.
"""

import ctypes
import importlib.metadata
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = "nvidia-cuda-nvrtc-cu12"


def checksum(source: bytes) -> int:
    """Returns the FNV-1a hash, which a test compares."""
    value = 0xCBF29CE484222325
    for byte in source:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def main() -> None:
    files = importlib.metadata.files(PACKAGE) or []
    path = next(file.locate() for file in files if file.name.startswith("libnvrtc.so"))
    nvrtc = ctypes.CDLL(str(path))
    source = (HERE / "kernels.cu").read_bytes()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    options = [b"--gpu-architecture=compute_70"]
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", 0, None, None) == 0
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    getattr(nvrtc, f"nvrtcGet{'ProgramLog' if failed else 'PTX'}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{'ProgramLog' if failed else 'PTX'}")(program, text)
    result = text.value.decode()
    if failed:
        raise SystemExit(result)
    head = f"// Compiled by compile.py from kernels.cu, whose checksum is {checksum(source):016x}.\n"
    # The compiler defines variables of its own headers, which no kernel uses.
    lines = [line for line in result.splitlines(keepends=True) if "2nv6target" not in line]
    (HERE / "kernels.ptx").write_text(head + "".join(lines))


if __name__ == "__main__":
    main()
