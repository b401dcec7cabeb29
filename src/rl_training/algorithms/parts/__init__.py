"""What several algorithms share: networks, critics, policies' updates, discriminators."""
