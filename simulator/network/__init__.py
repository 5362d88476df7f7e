"""Model the cost of communication in closed form, or by flows that share lines.

Import `closed_form` for seconds and bytes of collectives and messages, `flow_network` for a run's
transfers on the graph, `mean_cost` for one mean with either model, and `collectives` for the table
of collectives, which can be extended. Nothing here depends on SimPy: engines start the transfers.
"""
