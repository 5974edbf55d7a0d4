"""What runs for long: the reader's process, the stages, maintenance, and who supervises them.

In reading order: `supervisor`, `volume`, `stages`, `reader_supervision`, `reader_spawn`, `reader_process`,
`reader_progress`, `maintenance`, `maintenance_errors`, `log_entries`, `locks`.
"""
