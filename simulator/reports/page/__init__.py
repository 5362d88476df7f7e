"""`paceline report`: the results of runs as one HTML file that opens anywhere.

Import `page.report`. `reading` opens run directories, `sentences` has the verdict on one, and
`curves`, `spent`, `swept`, `tuned` and `compared` draw sections. A RUN is a directory
that simulate, validate, compare, tune or sweep has written.
"""
