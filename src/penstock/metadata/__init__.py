"""The picture of the cluster, who may change it, and where it is kept."""
