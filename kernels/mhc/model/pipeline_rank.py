"""One rank of a pipeline, as a process: `torchrun --nproc-per-node P pipeline_rank.py JOB.json FOLDER`."""

from pathlib import Path

from perflab.catalogue import load_module

if __name__ == "__main__":
    load_module(Path(__file__).with_name("pipeline_work.py")).main()
