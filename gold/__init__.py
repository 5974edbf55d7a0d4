"""Row state to nested documents, by Spark SQL."""
