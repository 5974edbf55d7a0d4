"""Checks of the pages against the code, and the parts of the pages that are generated from the code.

In reading order: `reference` (options of commands, keys of the pipeline file), `blocks` (blocks of all
pages).
"""
