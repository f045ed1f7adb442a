"""Experiments: questions about attention, answered by measuring, or by a model where no GPU is.

Each experiment is a module of this package with an `EXPERIMENT`, see `experiment.py`. To add one is
to add a file: `tunefa bench`, its help, the report and the documentation find it in this folder.
"""
