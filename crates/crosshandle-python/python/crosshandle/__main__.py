"""`python -m crosshandle`: the `crosshandle` command."""

from ._paths import main

main()
