"""Everything predicted: clusters, networks, objectives, programs and the engines that run them."""
