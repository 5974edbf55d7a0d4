"""Long-running parts of a command: the reader's process, the stages, maintenance, and their supervisor.

In reading order: `supervisor`, `stages`, `reader_supervision`, `reader_process`, `reader_progress`,
`wait_for_bronze`, `progress_text`, `locks`. Maintenance: `maintenance`, `table_files`, `log_entries`,
`clustering`, `old_timestamps`; of bronze `retention`; after an erasure `sweeping`. In a
catalog: `catalog_names`, `catalog_keys`. `named_tables`: names and patterns of a command line.
"""
