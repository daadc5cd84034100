"""Playing a task: environments, rewards, tools, agents."""
