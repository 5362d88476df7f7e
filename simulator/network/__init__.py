"""What communication costs: closed form, graph, and links that transfers share.

Import `closed_form` for seconds and bytes of collectives and messages, `mean_cost` for one average
on either kind of network, `flow_network` for a run's transfers on the graph. SimPy is not known
here: the engines decide when a transfer starts.
"""
