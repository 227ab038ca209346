"""A shop: a catalogue, a cart, a checkout, orders and an account."""
