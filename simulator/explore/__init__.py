"""`paceline explore`: a scenario behind sliders, on a page that redraws while they move.

`knobs` say what may be moved, `address` what of it a URL holds, `frames` compute, `pool` refines,
`picture` and `words` show, `page` joins them, `serve` serves them to this machine alone.
"""
