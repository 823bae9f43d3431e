"""``python -m pixalign``, and the ``pixalign`` command: ready for Ctrl-C before anything else."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from pixalign.cli import app, run_command

        run_command(app, "pixalign")
    except KeyboardInterrupt:  # before the command has begun, or after it has ended
        print("stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
