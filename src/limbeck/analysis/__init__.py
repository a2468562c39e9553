"""What a distilled model has in common with its teacher, measured from run directories and their data."""
