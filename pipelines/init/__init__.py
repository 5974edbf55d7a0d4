"""`smelt init`: a pipeline file and drafts of documents from the source; a bundle for Databricks."""
