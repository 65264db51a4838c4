"""Workers of this machine as processes: started, watched, and ended with all their children."""
