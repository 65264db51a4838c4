"""The memory that training takes."""
