"""Networks, optimisers and normalizers; they depend on shapes, not on algorithms."""
