"""Parts that several algorithms share: networks, critics, policies and their updates, discriminators."""
