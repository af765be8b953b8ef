"""``python -m relay_supervisor.cli``: the command `relay`."""

from relay_supervisor.cli import main

if __name__ == "__main__":
    main()
