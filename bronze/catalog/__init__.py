"""The source's tables as the catalog describes them.

In reading order: `source_table` (the values), `select` (selected tables with all facts), `one_snapshot`,
`queries`, `types`, `collations`, `keys`, `publication` (its present state), `problems` (reasons why a table
cannot be carried), `ruled_parts`, `ruled_tables`, `row_filters` and `harmful_members` (rules for columns and
rows), `numeric_values`.
"""
