"""The search: what is proposed, in which order, for how long, and which trial becomes a record."""
