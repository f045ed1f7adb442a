"""The search: it tries configs until its budget is used, and keeps the best as a record."""
