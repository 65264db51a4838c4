"""What many clients cost the server at which ranks meet, and the launcher that supervises hosts over ssh."""
