"""Classification of pictures: what is the same for all data sets, and those that are read in their original formats."""
