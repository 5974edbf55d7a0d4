"""What composes the layers: settings, Spark session, CLI, jobs, status, quality, demo."""
