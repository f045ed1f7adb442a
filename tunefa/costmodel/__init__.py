"""How long a config takes, from arithmetic, before anything has run."""
