"""Several regions: what is known of peers, requests sent to them, and requests taken for them."""
