"""What `tools/record.py` can record that needs more than one command, and the tables of pages made from records."""
