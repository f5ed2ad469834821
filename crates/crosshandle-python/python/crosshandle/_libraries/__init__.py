"""Support for other libraries' streams, memory and modules.

Each module is imported on first use.
"""
