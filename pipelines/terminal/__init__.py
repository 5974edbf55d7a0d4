"""What a person sees: output, errors with their remedies, exit codes, Ctrl-C, the log file.

In reading order: `output`, `failures`, `jvm_errors`, `interrupts`, `logs`.
"""
