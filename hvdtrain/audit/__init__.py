"""The proof of which records were used."""
