"""`python -m tuner` is `rooftune`, for shells that do not find the program by its name."""

from tuner.cli.main import main

if __name__ == "__main__":
    main()
