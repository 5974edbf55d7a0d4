"""Raw records to row state, by Spark SQL."""
