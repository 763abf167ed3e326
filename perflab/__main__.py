"""`python -m perflab`."""

from perflab.cli import main

if __name__ == "__main__":
    main()
