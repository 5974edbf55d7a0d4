"""The Spark session and the lake in SQL.

In reading order: `session_owner`, `held_session`, `session`, `remote`, `java`, `jars` with `store_checksums`,
`launch`, `local_folder`, `hadoop`, `class_archive` with `archive_training`, `jvm_death`, `executors`; then
`lake_sql`, `borrowed_sql`, `fresh_sql`, `sql_names`, `sql_writes`.
"""
