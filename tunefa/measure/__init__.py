"""Turns a compiled config into a trial: checks it, times it and races it, or predicts its time."""
