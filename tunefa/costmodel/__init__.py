"""Predicts how long a config takes, by arithmetic, before anything has run.

`occupancy`: how many CTAs fit on an SM. `gpu`: the cost model of GPUs. `npu`: the latency model of
NPUs. `estimate`: the time of a case by one of the two, and how sure it is.
"""
