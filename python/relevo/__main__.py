"""`python -m relevo`, the command line where its program is not on the path."""

from relevo.cli import main

if __name__ == "__main__":
    main()
