"""Records by their numbers, from what is known of where they are."""
