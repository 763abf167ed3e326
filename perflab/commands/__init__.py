"""One file per command; each is called from the command line only."""
