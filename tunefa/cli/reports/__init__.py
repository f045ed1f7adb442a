"""The reports that commands print: tables and arithmetic on the terminal."""
