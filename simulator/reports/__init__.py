"""Reports for readers: tables on a terminal, the HTML page, and sliders.

Import `terminal` for tables, whose columns `tables` makes, and `page.page.report` and
`explore.serve.explore` for the commands. Reports read results and compute no new numbers.
"""
