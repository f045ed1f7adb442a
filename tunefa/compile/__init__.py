"""A config becomes a binary, and a binary a launch."""
