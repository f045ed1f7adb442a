"""The report: one HTML page of the store, the journals and the results of experiments.

`gather` reads them into a `Content`, which is plain data and can be kept as JSON. Each section of
the page is a module that makes tables and plots of a content, and `page` renders them.
"""
