"""Support for streams, memory and modules of other libraries.

Each module is imported on first use.
"""
