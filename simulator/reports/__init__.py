"""Reports for readers: tables on a terminal, the HTML page, and sliders.

Import `terminal` for tables, `page.page.report` and `explore.serve.explore` for the commands.
Reports read results and never change them; they compute no new numbers.
"""
