"""Delta's log store for S3: the Java source, and the jar compiled from the source."""
