"""Questions of several hops over a corpus of pages, answered with search tools."""
