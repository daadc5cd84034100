"""Java: JUnit 4 and 5."""
