"""`make readers`: which readers read which of our tables, and whether they read them right."""
