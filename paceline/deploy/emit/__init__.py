"""`paceline emit`: configuration and code that run a pick in another framework.

Import `emit.emit`. `targets` says in one table what each framework runs as Paceline does, what it
does not, and where its source shows that; `templates` holds the code; `picked` finds the pick.
Nothing here imports torch or a framework.
"""
