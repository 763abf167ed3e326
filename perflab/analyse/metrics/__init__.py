"""One derived column per file; see the folder's README for how to add one."""
