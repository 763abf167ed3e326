"""What is derived from records on reading."""
