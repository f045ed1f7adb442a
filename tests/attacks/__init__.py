"""Attacks: what a hostile or unlucky kernel, file or machine does to tunefa, done on purpose.

Those that take seconds run with the suite. The others are marked `attack`: `make test-attacks`.
"""
