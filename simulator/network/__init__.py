"""The cost of communication: in closed form, or by transfers that share the lines of a graph.

Import `closed_form` for seconds and bytes of collectives and messages, `flow_network` for a run's
transfers on the graph, `mean_cost` for one mean with either model, `collectives` for the table of
collectives, to which new ones are added. Nothing here depends on SimPy: the engines decide when
a transfer starts.
"""
