"""WAL to raw records: PostgreSQL and Arrow only, no Spark."""
