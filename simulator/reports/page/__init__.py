"""`paceline report`: the results of runs as one HTML file that opens anywhere.

Import `page.report`. `reading` opens run directories; `sections` and `changes` make
sections. A RUN is a directory that a command wrote.
"""
