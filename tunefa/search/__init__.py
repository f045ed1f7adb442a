"""The search: it proposes configs until its budget is used, and keeps the best trial as a
record."""
