"""Streams, memory and modules of other libraries, imported when they are used."""
