"""``python -m normscale`` is the command ``normscale``."""

from normscale.cli import main

if __name__ == "__main__":
    main()
