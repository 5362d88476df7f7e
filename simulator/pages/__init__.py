"""Pages: what runs have found, as one HTML file that opens anywhere."""
