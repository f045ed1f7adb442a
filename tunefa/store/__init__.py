"""What is kept: records, journals, recorded landscapes, and how to find the best record."""
