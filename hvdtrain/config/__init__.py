"""What a user may configure: options, their checks, and reading them from the command line and from files."""
