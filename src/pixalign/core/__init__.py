"""What every other room is built on: frozen values, checks, batches, progress, files."""
