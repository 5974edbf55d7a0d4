"""Interaction with a person: output, errors with their remedies, exit codes, Ctrl-C, the log file.

In reading order: `arguments`, `help_layout`, `completion`; `output`; `failures`, `error_pages`, `jvm_errors`,
`interrupts`, `logs`; `visible`.
"""
