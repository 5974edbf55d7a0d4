"""Long-running parts of a command: the reader's process, the stages, maintenance, and their supervisor.

In reading order: `supervisor`, `stages`, `reader_supervision`, `reader_process`, `reader_progress`,
`maintenance`, `log_entries`, `locks`.
"""
