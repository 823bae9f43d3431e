"""``python -m pixalign.cli``, which other launchers can start."""

from pixalign.cli import main

if __name__ == "__main__":
    main()
