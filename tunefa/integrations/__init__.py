"""Frameworks call tunefa through these modules: one module each, imported only where it is used."""
