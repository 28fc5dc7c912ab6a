"""What the tests against foreign programs share."""
