"""The Spark session: Java, jars, start, death; and the lake in SQL.

In reading order: `session`, `remote`, `held_session`, `java`, `jars`, `jvm_death`, `lake_sql`, `sql_names`.
"""
