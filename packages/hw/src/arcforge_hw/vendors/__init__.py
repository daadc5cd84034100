"""Signs of the chips of seven vendors, and the common part of their backends. No code here has run on any of them."""
