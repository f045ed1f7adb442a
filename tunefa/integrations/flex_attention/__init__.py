"""The search of options for PyTorch's FlexAttention, and the pass that gives them to Inductor.

Users call `tunefa.integrations.flex`. This module imports nothing, as `deferred_pass` is imported
while PyTorch is.
"""
