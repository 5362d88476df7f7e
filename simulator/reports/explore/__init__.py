"""`paceline explore`: a scenario behind sliders, on a page that redraws while they move.

`controls` defines the sliders, `address` keeps their values in the URL, and `views` decides what to
show: `previews` makes short runs at once, `pool` whole ones in the background. `picture` and
`words` show them, `page` joins all that, and `serve` serves it to this machine alone. Import
`serve.explore`.
"""
