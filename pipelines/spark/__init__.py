"""The Spark session and the lake in SQL.

In reading order: `session`, `remote`, `held_session`, `java`, `jars`, `launch`, `local_folder`, `hadoop`,
`class_archive`, `jvm_death`, `executors`; then `lake_sql`, `borrowed_sql`, `fresh_sql`, `sql_names`,
`sql_writes`.
"""
