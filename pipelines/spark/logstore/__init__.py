"""Delta's log store for S3, which is Java: its source, and the jar that is made of it."""
