"""What people read: tables on a terminal, the HTML page, the sliders.

Import `terminal` for tables, `page.page.report` and `explore.serve.explore` for the commands.
Reports read results and change none; no number is first computed here.
"""
