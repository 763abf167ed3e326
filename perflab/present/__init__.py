"""How runs are shown on a terminal and in files."""
