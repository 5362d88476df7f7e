"""`paceline explore`: a page with sliders that simulates when one is released.

`explorer` defines the sliders, and simulates their values. `page` shows the result, and `serve`
serves the page to this machine only. Import `serve.explore`.
"""
