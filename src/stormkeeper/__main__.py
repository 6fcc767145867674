"""``python -m stormkeeper`` is the ``storm`` command."""

from stormkeeper.cli import main

if __name__ == "__main__":
    main()
