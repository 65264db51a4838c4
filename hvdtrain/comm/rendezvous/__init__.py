"""Where ranks meet whose launcher starts processes and nothing more."""
