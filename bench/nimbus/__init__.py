"""Parts of the bench of a large cluster's Nimbus."""
