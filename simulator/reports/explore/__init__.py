"""`paceline explore`: a scenario behind sliders, on a page that answers when one is released.

`controls` defines the sliders, and `explorer` simulates what they say. `page` shows that, and
`serve` serves it to this machine alone. Import `serve.explore`.
"""
