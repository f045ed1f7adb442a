"""Records, journals and recorded landscapes on disk, and the lookup of the best record.

A reading order: `record` (one result), `document` and `schema1` (the file format and its past
version), `added_parameters` (what configs from before a parameter mean), `results` (files and
folders of records), `lookup` (which config to run), `journal` (every trial of a search), `failures`
and `landscape` (views of journals), `exports` (other formats).
"""
