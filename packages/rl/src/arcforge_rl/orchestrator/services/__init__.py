"""Task services: tasks with their own rollout and reward logic, in this process, in another one, or over HTTP."""
