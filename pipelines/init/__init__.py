"""`smelt init`: a pipeline file and drafts of documents from the source; a bundle for Databricks.

In reading order: `command`, `catalog` (queries of the source), `file` (the pipeline file), `personal`
(proposed rules for columns), `new_files` (all files or none). `databricks` and `bundle`: the bundle.
"""
