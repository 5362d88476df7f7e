"""`paceline report`: what runs have found, as one HTML file that opens anywhere.

Import `page.report`. `reading` opens run directories, `sentences` says the verdict; the files named
after sections (`curves`, `spent`, `stale`, `swept`, `tuned`, `compared`) each draw one.
"""
