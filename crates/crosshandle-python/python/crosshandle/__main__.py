"""Runs the `crosshandle` command for `python -m crosshandle`."""

from ._paths import main

main()
