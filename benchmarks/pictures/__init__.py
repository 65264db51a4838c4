"""Pictures of results. matplotlib is imported when one is drawn, and not before."""
