"""``python -m tarshard`` is the command ``tarshard``."""

from tarshard.cli.entry import main

if __name__ == "__main__":
    main()
