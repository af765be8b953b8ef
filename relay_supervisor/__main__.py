"""``python -m relay_supervisor``: the same as the command `relay-supervisor`."""

from relay_supervisor.main import main

if __name__ == "__main__":
    main()
