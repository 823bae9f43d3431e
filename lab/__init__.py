"""The lab: small text-to-image models trained on scenes whose every pixel is known."""
