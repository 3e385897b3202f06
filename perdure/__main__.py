"""`python -m perdure` is `perdure`."""

from perdure.cli import main

if __name__ == "__main__":
    main()
