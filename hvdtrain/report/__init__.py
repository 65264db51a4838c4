"""report.html: what one run or several have done, in one file without scripts and without a network."""
