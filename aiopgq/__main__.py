"""`python -m aiopgq`."""

from aiopgq.cli import main

if __name__ == "__main__":
    main()
