"""Pipelines of stages: who computes what in which order, and how long a step of it takes."""
