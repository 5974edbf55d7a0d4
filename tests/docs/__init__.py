"""What the pages are checked against, and the parts of them that are made from the code.

In reading order: `reference` (options of commands, keys of the pipeline file), `blocks` (blocks of all
pages).
"""
