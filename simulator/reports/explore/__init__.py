"""`paceline explore`: a scenario behind sliders, on a page that redraws while they move.

`controls` say what may be moved, `address` what of it a URL holds, `views` compute, `previews` make
short runs of long ones, `pool` refines, `picture` and `words` show, `page` joins them, and `serve`
serves them to this machine alone. Import `serve.explore`.
"""
