"""TypeScript: vitest, node:test, tape and mocha."""
