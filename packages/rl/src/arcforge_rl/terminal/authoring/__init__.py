"""Synthesis of tasks from seeds and pages: an author writes, a validator plays, and tasks that hold are admitted."""
