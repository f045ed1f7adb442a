"""The names of other attention libraries, computed by tunefa: one module for each."""
