"""Plans for machines that are not here, from chip data with sources."""
