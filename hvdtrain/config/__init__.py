"""What a user may say: options, their checks, and reading them from the command line and from files."""
