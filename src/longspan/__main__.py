"""``python -m longspan`` is the command ``longspan``."""

from longspan.cli import main

if __name__ == "__main__":
    main()
